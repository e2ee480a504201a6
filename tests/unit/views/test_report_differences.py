"""`allranks report`: what the code of a job differs from its commit in, as text, HTML, JSON and alone."""

from __future__ import annotations

import asyncio
import base64
import json
from datetime import UTC, datetime
from typing import Any

import pytest

from allranks.client.submission import read_differences
from allranks.code import ship
from allranks.code.differences import compressed
from allranks.errors import ClusterError
from allranks.views.report.forms import rendered
from allranks.views.report.run_files import RunFiles, read_run_files

NOW = datetime(2026, 3, 4, 10, tzinfo=UTC)
COMMIT = "4229e32d9bdf4229e32d9bdf4229e32d9bdf4229"
SHIPPED = {"configMap": "allranks-code-x", "sha256": "0" * 64, "commit": COMMIT, "dirty": True, "changes": "a.py +1 -1"}
DIFF = f"# differences from commit {COMMIT}\ndiff --git a/a.py b/a.py\n-<b>1</b>\n+\x1b[31m2\n"


def job(code: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    metadata = {"name": "birds", "namespace": "team", "creationTimestamp": "2026-03-04T09:00:00Z"}
    return {"metadata": metadata, "spec": {**spec, **({"code": code} if code else {})}, "status": {}}


def report(form: str, code: dict[str, Any] | None = None, run: RunFiles | None = None, **spec: Any) -> str:
    return rendered(job(code, **spec), form, NOW, run=run)


def test_all_forms_of_the_report_have_the_differences() -> None:
    run = RunFiles(differences=DIFF)
    text = report("text", SHIPPED, run)
    assert "\nDifferences from commit 4229e32d9bdf\n  # differences from" in text
    assert text.endswith("\n  -<b>1</b>\n  +2\n")
    assert json.loads(report("json", SHIPPED, run))["differences"] == DIFF
    page = report("html", SHIPPED, run)
    assert '<span class="removed">-&lt;b&gt;1&lt;/b&gt;\n</span><span class="added">+2\n</span>' in page
    assert "<summary>4 lines</summary>" in page
    assert report("diff", SHIPPED, run) == DIFF.replace("\x1b[31m", "")


def test_the_text_has_the_first_lines_and_names_the_command_for_all() -> None:
    run = RunFiles(differences="".join(f"+{number}\n" for number in range(500)))
    text = report("text", SHIPPED, run)
    assert text.endswith("  +199\n  ... and 300 more lines: allranks report birds -o diff\n")
    assert report("diff", SHIPPED, run).endswith("\n+499\n")


def test_secrets_of_the_manifest_are_masked_in_the_differences() -> None:
    run = RunFiles(differences="+connect(sesame42)\n")
    for form in ("text", "html", "json", "diff"):
        assert "sesame42" not in report(form, SHIPPED, run, env=[{"name": "DB_PASSWORD", "value": "sesame42"}])


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (
            SHIPPED,
            "# The differences are in the ConfigMap allranks-code-x, which exists as long as a job with this code",
        ),
        ({**SHIPPED, "dirty": False}, f"# no differences from commit {COMMIT}"),
        (
            {"claim": "projects", "subPath": "me"},
            "# the code is in claim projects, directory me, and the job names no commit",
        ),
        ({"image": "me/code:7"}, "# the code is in image me/code:7, and the job names no commit"),
        (None, "# the code has no commit"),
    ],
)
def test_without_differences_the_report_says_where_they_are(code: dict[str, Any] | None, expected: str) -> None:
    assert report("diff", code) == f"{expected}\n"


def test_code_in_a_claim_or_an_image_is_named() -> None:
    assert "\nCode        claim projects, directory me\n" in report("text", {"claim": "projects", "subPath": "me"})
    assert "\nCode        image me/code:7\n" in report("text", {"image": "me/code:7"})


class Server:
    """Answers the request for a ConfigMap."""

    namespace = "team"

    def __init__(self, content: bytes | ClusterError | None) -> None:
        self.content, self.paths = content, list[str]()

    async def get(self, path: str) -> dict[str, Any]:
        self.paths.append(path)
        if isinstance(self.content, ClusterError):
            raise self.content
        data = {ship.DIFFERENCES: base64.b64encode(self.content).decode()} if self.content else {}
        return {"binaryData": {"code.tar.gz": "", **data}}


def read(content: bytes | ClusterError | None, code: dict[str, Any]) -> tuple[RunFiles, list[str]]:
    server = Server(content)
    return asyncio.run(read_differences(server, job(code))), server.paths  # type: ignore[arg-type]


def test_the_differences_of_a_job_on_a_cluster_are_in_its_config_map() -> None:
    found, paths = read(compressed(DIFF, 2**20), SHIPPED)
    assert (found.differences, found.missing) == (DIFF, "")
    assert paths == ["/api/v1/namespaces/team/configmaps/allranks-code-x"]


@pytest.mark.parametrize("code", [{**SHIPPED, "dirty": False}, {"claim": "projects"}, {"image": "me/code:7"}])
def test_nothing_is_read_for_code_that_has_none(code: dict[str, Any]) -> None:
    assert read(ClusterError("no"), code) == (RunFiles(), [])


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (ClusterError("configmaps is forbidden", 403), "which cannot be read: configmaps is forbidden"),
        (b"rubbish", "which cannot be read: the differences cannot be read:"),
        (None, "has no differences: the same files were stored before, or they fill it"),
    ],
)
def test_the_report_says_why_the_differences_cannot_be_had(content: Any, sentence: str) -> None:
    found, _ = read(content, SHIPPED)
    assert found.differences == ""
    assert "ConfigMap allranks-code-x" in found.missing
    assert sentence in found.missing
    assert sentence in report("text", SHIPPED, found)


def test_the_differences_of_a_local_run_are_in_its_directory(tmp_path: Any) -> None:
    (tmp_path / "code.json").write_text(json.dumps({"commit": COMMIT, "dirty": True}))
    (tmp_path / "code.diff").write_text(DIFF)
    text = report("text", None, read_run_files(tmp_path))
    assert "\nCode        commit 4229e32d9bdf" in text
    assert text.endswith("\n  -<b>1</b>\n  +2\n")
