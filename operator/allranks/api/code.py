"""The types of `spec.code` and `spec.packages`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from allranks.api import cel_rules as cel
from allranks.fields import Commit, Model, Name, Path, Sha256, Text, rules


class Code(Model):
    """The code of the program, at the same path in every pod. Set exactly one of configMap, claim and image."""

    model_config = {"json_schema_extra": rules(*cel.CODE)}

    config_map: Name | None = Field(
        None,
        description="Name of the ConfigMap with the archive code.tar.gz, which allranks submit --code DIR creates.",
    )
    sha256: Sha256 | None = Field(
        None, description="SHA-256 of the uncompressed archive. Pods with another archive do not start."
    )
    claim: Name | None = Field(None, description="Name of a PersistentVolumeClaim with the code, mounted read-only.")
    image: Text | None = Field(
        None, description="Reference of an OCI image with the code, mounted read-only. Needs Kubernetes 1.33."
    )
    sub_path: Text | None = Field(None, description="Directory inside the claim or image. Default: all of it.")
    path: Path = Field(
        "/workspace",
        description="Where the code is in the pods. It is the working directory, unless workingDir is set, and the "
        "first entry of PYTHONPATH.",
    )
    commit: Commit | None = Field(None, description="The git commit of the code, for the status and reports.")
    dirty: bool | None = Field(None, description="Whether files differ from the commit.")
    changes: Text | None = Field(None, description="The files that differ from the commit, for reports.")


Packages = Annotated[
    list[Annotated[str, StringConstraints(min_length=1, max_length=512)]],
    Field(min_length=1, max_length=64, json_schema_extra=rules(*cel.PACKAGES)),
]
