"""`allranks convert` rewrites manifests of version 0.1 and keeps everything else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from allranks.api.validation import parse
from allranks.cli.convert.old_form import applied, found
from allranks.cli.main import cli

OLD = """\
# my job
apiVersion: allranks.dev/v1alpha1
kind: DistributedTraining
metadata: {name: restart}   # a name, not an action
spec:
  framework: pytorch
  image: me/train:1
  success: 'all'   # every rank
  command: [restart, ignore]
  roles: {worker: {replicas: 2}}
  restart:
    scope: group
    rules:
    - {exitCodes: [3], action: restartUncounted}   # again
    - reasons: [Hang]
      action: "fail"
  hang: {timeoutSeconds: 5, action: ignore}
  scheduling: {gang: none}
  pytorch: {backend: nccl, processesPerNode: auto}
  progress:
    stragglerFactor: 1.75   # slow ranks
"""
NEW = """\
# my job
apiVersion: allranks.dev/v1alpha1
kind: DistributedTraining
metadata: {name: restart}   # a name, not an action
spec:
  framework: pytorch
  image: me/train:1
  success: 'All'   # every rank
  command: [restart, ignore]
  roles: {worker: {replicas: 2}}
  restart:
    scope: Group
    rules:
    - {exitCodes: [3], action: RestartUncounted}   # again
    - reasons: [Hang]
      action: "Fail"
  hang: {timeoutSeconds: 5, action: Ignore}
  scheduling: {gang: None}
  pytorch: {backend: NCCL, processesPerNode: Auto}
  progress:
    stragglerPercent: 175   # slow ranks
"""


def call(*args: str, stdin: str = "") -> Result:
    return CliRunner().invoke(cli, ["convert", *args], input=stdin)


def test_the_manifest_is_printed_with_its_comments_and_layout_and_is_valid(tmp_path):
    file = tmp_path / "job.yaml"
    file.write_text(OLD)
    result = call(str(file))
    assert (result.exit_code, result.stdout) == (0, NEW)
    assert file.read_text() == OLD
    parse(yaml.safe_load(result.stdout))


def test_the_changes_are_listed_on_stderr_with_line_and_path():
    assert call("-", stdin=OLD).stderr.splitlines()[:3] == [
        "stdin:8: spec.success: all -> All",
        "stdin:12: spec.restart.scope: group -> Group",
        "stdin:14: spec.restart.rules[0].action: restartUncounted -> RestartUncounted",
    ]


def test_files_are_rewritten_in_place_with_their_line_ends(tmp_path):
    file = tmp_path / "job.yaml"
    file.write_bytes(OLD.replace("\n", "\r\n").encode())
    result = call("--in-place", str(file))
    assert (result.exit_code, result.stdout) == (0, "")
    assert file.read_bytes() == NEW.replace("\n", "\r\n").encode()


def test_a_manifest_in_todays_form_is_unchanged():
    result = call("-", stdin=NEW)
    assert (result.stdout, result.stderr) == (NEW, "stdin: nothing to convert\n")


def test_other_kinds_are_unchanged():
    text = OLD.replace("kind: DistributedTraining", "kind: PyTorchJob")
    assert call("-", stdin=text).stdout == text


def test_jobs_of_a_list_are_converted():
    """`kubectl get dt -o yaml` prints one."""
    jobs = {"apiVersion": "v1", "kind": "List", "items": [yaml.safe_load(OLD), {"kind": "ConfigMap"}]}
    converted = yaml.safe_load(call("-", stdin=yaml.safe_dump(jobs)).stdout)
    assert converted == jobs | {"items": [yaml.safe_load(NEW), {"kind": "ConfigMap"}]}


def test_several_files_become_several_documents(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).write_text(OLD)
    assert call(str(tmp_path / "a"), str(tmp_path / "b")).stdout == f"{NEW}---\n{NEW}"


def test_JSON_stays_JSON():
    text = json.dumps(yaml.safe_load(OLD), indent=2)
    assert json.loads(call("-", stdin=text).stdout) == yaml.safe_load(NEW)


def test_an_alias_is_changed_once_at_its_anchor():
    text = OLD.replace("action: restartUncounted", "action: &again restartUncounted").replace('"fail"', "*again")
    changed = applied(text, found(text))
    assert [rule["action"] for rule in yaml.safe_load(changed)["spec"]["restart"]["rules"]] == ["RestartUncounted"] * 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, ": cannot be read: no such file or directory"),
        (b"a: 1\nb: [\n", ":3:1: is not YAML: "),
        (b"\xff", ": is not a UTF-8 text file"),
    ],
    ids=["no file", "no YAML", "no text"],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, content, message):
    file = tmp_path / "job.yaml"
    if content is not None:
        file.write_bytes(content)
    result = call(str(file))
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {file}")
    assert message in result.stderr


def test_stdin_cannot_be_rewritten():
    result = call("--in-place", "-", stdin=OLD)
    assert (result.exit_code, "standard input cannot be rewritten" in result.stderr) == (2, True)
