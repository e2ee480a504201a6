"""`allranks debug`: what is masked, the bounds of logs, and archives of local runs."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from allranks.cli.commands.debug_archive.archive import ALL_LOGS_BYTES, LOG_BYTES, Archive, Log, log_limit
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


PROGRAM = """\
import os
print("token", os.environ["MY_TOKEN"], "rank", os.environ["ALLRANKS_INDEX"], flush=True)
raise SystemExit(3)
"""


def test_a_local_run_is_collected_with_the_logs_of_all_attempts(tmp_path: Path):
    (tmp_path / "train.py").write_text(PROGRAM)
    job = {
        "apiVersion": "allranks.dev/v1alpha1",
        "kind": "DistributedTraining",
        "metadata": {"name": "fails"},
        "spec": {
            "framework": "spmd",
            "image": "train:1",
            "command": ["python", "train.py"],
            "env": [{"name": "MY_TOKEN", "value": "abcdef123"}],
            "restart": {"maxRestarts": 1, "rules": [{"exitCodes": [3], "action": "Restart"}]},
            "roles": {"worker": {"replicas": 2}},
        },
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))

    def allranks(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "allranks", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)

    assert allranks("run", "job.yaml").returncode != 0
    done = allranks("debug", "fails", "-o", "out.tar.gz", "--kubeconfig", "none")
    assert done.returncode == 0, done.stderr
    assert "The newest local run of fails is collected" in done.stderr
    assert allranks("debug", "--run-dir", "runs/fails", "-o", "again.tar.gz").returncode == 0
    with tarfile.open(tmp_path / "out.tar.gz") as tar:
        found = {entry.name: tar.extractfile(entry).read().decode() for entry in tar.getmembers()}  # type: ignore[union-attr]
    logs = [name for name in found if "/logs/" in name]
    assert {name.rsplit("-", 1)[1] for name in logs} == {"0.log", "1.log"}, logs
    assert all("token <masked> rank" in found[name] for name in logs)
    assert not [name for name, text in found.items() if "abcdef123" in text]
    assert yaml.safe_load(found["fails-debug/status.yaml"])["phase"] == "Failed"
    assert "fails-debug/report.txt" in found
