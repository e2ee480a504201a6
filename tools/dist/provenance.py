"""Where the files of a release come from: an in-toto statement with SLSA provenance, which `tools/publish.py` signs."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dist.files import digest
from dist.source import ROOT, Source, git

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
# Names, not pages: docs/dev/releasing.md describes both.
BUILD_TYPE = "https://allranks.dev/build/make-dist/v1"
BUILDER = "https://allranks.dev/build/unsigned-workstation"
MATERIALS = ("images/*/*requirements*.txt", "images/horovod/source.txt", "tools/dist/requirements.txt", "tools/programs/go.mod")
"""Committed files that pin what a build downloads."""


def write(out: Path, source: Source, images: Sequence[str], base: str) -> None:
    """Describes every file in `out`. The content depends only on the commit, the options and the version of Python."""
    file = out / f"allranks-{source.version}.provenance.json"
    subjects = [{"name": path.name, "digest": {"sha256": digest(path)}} for path in sorted(out.iterdir())]
    statement = {
        "_type": STATEMENT,
        "subject": subjects,
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {"command": "make dist", "images": list(images), **({"base": base} if images else {})},
                "internalParameters": {"SOURCE_DATE_EPOCH": source.epoch, "python": platform.python_version()},
                "resolvedDependencies": [commit(source), *materials()],
            },
            "runDetails": {"builder": {"id": builder()}},
        },
    }
    file.write_text(json.dumps(statement, indent=2) + "\n")


def builder() -> str:
    """Return the identity of the workflow that runs, or of a workstation."""
    server, reference = os.environ.get("GITHUB_SERVER_URL"), os.environ.get("GITHUB_WORKFLOW_REF")
    return f"{server}/{reference}" if server and reference else BUILDER


def commit(source: Source) -> dict[str, Any]:
    return {"name": "allranks", "digest": {"gitCommit": source.commit}}


def materials() -> list[dict[str, Any]]:
    names = git("ls-files", *MATERIALS).split()
    return [{"name": name, "digest": {"sha256": digest(ROOT / name)}} for name in sorted(names)]
