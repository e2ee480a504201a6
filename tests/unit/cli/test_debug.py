"""`allranks debug`: what is masked, and the bounds of logs."""

from __future__ import annotations

import tarfile
from datetime import UTC, datetime

import pytest

from allranks.cli.commands.debug import ALL_LOGS_BYTES, LOG_BYTES, Archive, Log, log_limit
from allranks.masking import is_secret_name, mask_text, masked, secrets_in

NOW = datetime(2026, 3, 4, 10, 15, tzinfo=UTC)


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "db-password", "apiKey", "GOOGLE_CREDENTIALS", "KEY"]
)
def test_a_variable_with_this_name_is_a_secret(name):
    assert is_secret_name(name)


@pytest.mark.parametrize("name", ["NCCL_DEBUG", "TOKENIZERS_PARALLELISM", "MAX_TOKENS", "PATH", "KEYS_PER_SHARD"])
def test_a_variable_with_this_name_is_no_secret(name):
    assert not is_secret_name(name)


def test_secrets_are_masked_in_variables_options_shell_commands_and_urls():
    container = {
        "env": [
            {"name": "HF_TOKEN", "value": "hf_12345"},
            {"name": "A_TOKEN", "valueFrom": {"secretKeyRef": {"name": "db", "key": "token"}}},
        ],
        "command": ["train", "--api-key", "abcdefgh", "--token=ijklmnop", "--lr", "0.1"],
        "args": ["-c", "export DB_PASSWORD='qrst uvw'; pip install https://me:pass@pypi.example.com/simple"],
    }
    job = {
        "metadata": {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": "hf_12345", "team": "nlp"}},
        "spec": {"template": {"spec": {"containers": [container]}}},
    }
    assert masked(job) == {
        "metadata": {"annotations": {"team": "nlp"}},
        "spec": {
            "template": {
                "spec": {
                    "containers": [
                        {
                            "env": [{"name": "HF_TOKEN", "value": "<masked>"}, container["env"][1]],
                            "command": ["train", "--api-key", "<masked>", "--token=<masked>", "--lr", "0.1"],
                            "args": [
                                "-c",
                                "export DB_PASSWORD=<masked>; pip install https://<masked>@pypi.example.com/simple",
                            ],
                        }
                    ]
                }
            }
        },
    }
    assert secrets_in(job) == {"hf_12345", "abcdefgh", "ijklmnop", "qrst uvw"}
    assert mask_text("token hf_12345, abcdefgh", secrets_in(job)) == "token <masked>, <masked>"


def test_short_values_are_masked_where_they_stand_and_not_elsewhere():
    job = {"env": [{"name": "USE_TOKEN", "value": "1"}]}
    assert masked(job) == {"env": [{"name": "USE_TOKEN", "value": "<masked>"}]}
    assert secrets_in(job) == set()


def test_the_end_of_a_long_log_is_kept():
    log = Log(limit=20)
    for number in range(10):
        log.add(f"line {number}".encode())
    assert list(log.lines) == ["line 8", "line 9"]
    assert log.dropped == 8 * len("line 0\n")
    log.add(b"x" * 50)
    assert list(log.lines) == ["x" * 20]


def test_all_logs_together_are_bounded():
    assert log_limit(1) == LOG_BYTES
    assert log_limit(10_000) * 10_000 <= ALL_LOGS_BYTES


def test_the_same_content_gives_the_same_bytes(tmp_path):
    for number in (1, 2):
        with Archive("job", {"secret"}) as archive:
            archive.add("b.txt", "a secret\n")
            archive.add("a/c.txt", "x\n")
            archive.write(tmp_path / f"{number}.tar.gz", NOW)
    assert (tmp_path / "1.tar.gz").read_bytes() == (tmp_path / "2.tar.gz").read_bytes()
    with tarfile.open(tmp_path / "1.tar.gz") as tar:
        assert tar.getnames() == ["job-debug/a/c.txt", "job-debug/b.txt"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1.tar.gz", "2.tar.gz"]
