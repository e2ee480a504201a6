"""Directories of code in manifests and on the command line become `spec.code`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from allranks.authoring.manifests import Loaded, load
from allranks.cli.main import cli
from allranks.code import bundle as bundles
from allranks.code.bundle import collect
from allranks.errors import InvalidManifest
from support.builders import manifest


def project(folder: Path, *documents: dict[str, Any]) -> Path:
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "train.py").write_text("print(1)\n")
    (folder / "job.yaml").write_text(yaml.safe_dump_all(documents))
    return folder / "job.yaml"


def code_of(loaded: Loaded, number: int = 0) -> dict[str, Any]:
    code: dict[str, Any] = loaded.documents[number]["spec"]["code"]
    return code


def test_a_directory_in_a_manifest_is_relative_to_the_manifest(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    loaded = load([str(project(tmp_path / "a", manifest(code="src")))])
    bundle = collect(tmp_path / "a" / "src")
    assert code_of(loaded) == {"configMap": bundle.config_map, "sha256": bundle.sha256}
    assert loaded.jobs[0].spec.code is not None
    assert loaded.bundles[bundle.config_map].archive == bundle.archive


def test_the_option_replaces_what_the_manifest_says_but_the_path(tmp_path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "train.py").write_text("print(2)\n")
    file = project(tmp_path / "a", manifest(code={"claim": "me", "path": "/app"}), manifest(name="b", code="src"))
    loaded = load([str(file)], code=tmp_path / "other")
    bundle = collect(tmp_path / "other")
    assert code_of(loaded) == {"configMap": bundle.config_map, "sha256": bundle.sha256, "path": "/app"}
    assert code_of(loaded, 1) == {"configMap": bundle.config_map, "sha256": bundle.sha256}
    assert list(loaded.bundles) == [bundle.config_map]


def test_code_of_a_claim_stays_as_it_is(tmp_path) -> None:
    loaded = load([str(project(tmp_path / "a", manifest(code={"claim": "me"})))])
    assert (code_of(loaded), loaded.bundles) == ({"claim": "me"}, {})


def test_what_is_not_shipped_is_noted(tmp_path) -> None:
    file = project(tmp_path / "a", manifest(code="src"))
    (tmp_path / "a" / "src" / ".env").write_text("TOKEN=1")
    [(severity, note)] = load([str(file)]).notes()
    assert (severity, note.partition(": spec.code: ")[2]) == (
        "note",
        ".env is not shipped: it usually holds credentials; to ship it, add the line !.env to .allranksignore",
    )


@pytest.mark.parametrize(
    ("directory", "message"),
    [("missing", "missing is not a directory"), ("empty", "empty has no files to ship"), (7, "must be a mapping")],
)
def test_a_directory_that_cannot_be_shipped_is_a_problem_of_the_field(tmp_path, directory, message) -> None:
    file = project(tmp_path / "a", manifest(code=directory))
    (tmp_path / "a" / "empty").mkdir()
    with pytest.raises(InvalidManifest) as error:
        load([str(file)])
    assert "job: spec.code: " in str(error.value)
    assert message in str(error.value)


def test_code_that_is_too_large_for_a_cluster_still_runs_here(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(bundles, "MAX_SHIPPED_BYTES", 10)
    file = project(tmp_path / "a", manifest(code="src"))
    with pytest.raises(
        InvalidManifest, match=r"after compression, and a ConfigMap takes 10 B. The largest files: train"
    ):
        load([str(file)])
    assert load([str(file)], local=True).jobs[0].spec.code is not None


def test_validate_and_render_read_the_directory(tmp_path) -> None:
    file = project(tmp_path / "a", manifest(code="src"))
    checked = CliRunner().invoke(cli, ["validate", str(file)])
    assert checked.exit_code == 0, checked.output
    rendered = CliRunner().invoke(cli, ["render", str(file)])
    assert collect(tmp_path / "a" / "src").config_map in rendered.output
