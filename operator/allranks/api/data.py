"""The types of `spec.code`, `spec.packages`, `spec.inputs` and `spec.outputs`, and of their entries in the status."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from allranks.api import cel_rules as cel
from allranks.fields import Commit, Model, Name, Path, Sha256, Text, TextPart, rules

DATA_NAME = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
DataName = Annotated[str, StringConstraints(min_length=1, max_length=40, pattern=DATA_NAME)]
"""Becomes a part of the name of a volume, and of variables."""
ADDRESS = r"(s3|gs|az)://[^/]+(/.+)?|https?://[^/]+/.+|hf://((datasets|models)/)?[^/]+/.+"
"""Sources that are fetched, and that are not code."""
Bytes = Annotated[int, Field(ge=0, le=2**53 - 1)]
"""JSON numbers are exact up to this value."""
Revision = Annotated[str, StringConstraints(min_length=1, max_length=128)]
InputState = Literal["Pending", "Fetching", "Ready", "Failed"]
OutputState = Literal["Checking", "Pending", "Uploading", "Uploaded", "Failed"]
Location = Literal["Claim", "Node", "Pod"]
"""Where a cluster fetches an input: a claim of the namespace, a directory of each node, an emptyDir of each pod."""
MESSAGE_LENGTH = 128
"""Limit of the message of an output, so that the status stays small. The condition has the whole message."""
MOUNTED: tuple[str, ...] = ("claim", "image")
"""Schemes of inputs that are mounted as volumes."""
OBJECT_STORES: tuple[str, ...] = ("s3", "gs", "az")
"""Schemes of outputs whose destination is checked before the ranks start."""


class Code(Model):
    """The code of the program, at the same path in every pod. Set exactly one of configMap, claim and image."""

    model_config = {"json_schema_extra": rules(*cel.CODE, *cel.CODE_PLACE)}

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


class Input(Model):
    """Data that the program reads. Every pod finds it at the same path, read-only, unless the program streams it."""

    model_config = {"json_schema_extra": rules(*cel.INPUT)}

    name: DataName = Field(
        description="Name of the input: lower-case letters, digits and '-'. The program reads the path from "
        "ALLRANKS_INPUT_NAME, with NAME in upper case and '_' for '-'. With mode: Stream it is the address of the data."
    )
    source: Text = Field(
        alias="from",
        description="Where the data is: s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, https://..., "
        "hf://datasets/OWNER/NAME or hf://models/OWNER/NAME, git+https://..., claim://CLAIM/DIRECTORY or "
        "image://REFERENCE.",
    )
    path: Path | None = Field(
        None,
        description="Directory in which the pods find the data. Required, except with mode: Stream, which has none.",
    )
    secret: Name | None = Field(
        None,
        description="Name of a Secret whose keys are variables with credentials, for example AWS_ACCESS_KEY_ID. The "
        "pod that fetches gets them, and with mode: Stream the training containers. Local runs use the variables and "
        "the configuration files of this machine instead.",
    )
    revision: Revision | None = Field(
        None,
        description="The wanted revision: a branch, tag or commit of hf:// and git+https://, else the revision that "
        "an earlier job has in its status. Data with another revision is an error. Default: the current one.",
    )
    sha256: Sha256 | None = Field(
        None,
        description="SHA-256 of the file. If the data has several files, of the list that sha256sum prints for "
        "them, sorted by name. Data with another sum is an error.",
    )
    unpack: bool = Field(
        False,
        description="Whether archives among the fetched files (.tar, .tar.gz, .tgz, .tar.bz2, .tar.xz, .zip) are "
        "replaced by the files in them. Only with mode: Copy. sha256 is the sum of the archive.",
    )
    mode: Literal["Copy", "Mount", "Stream"] | None = Field(
        None,
        description="Copy: fetched before the ranks start. Mount: a volume, for claim:// and image:// only. Stream: "
        "nothing is copied, and the program reads from the address itself; not for git+https://. Default: Mount for "
        "claim:// and image://, Copy for all others.",
    )

    @property
    def scheme(self) -> str:
        return self.source.partition("://")[0]

    @property
    def mounted(self) -> bool:
        """Return whether it is a volume, which nothing fetches."""
        return self.scheme in MOUNTED

    @property
    def streamed(self) -> bool:
        """Return whether the program reads it from its address. Only its revision is looked up."""
        return self.mode == "Stream"


RESUME_INPUT = "resume-from"
"""Name of the address in resumeFrom, as an input."""


class StartingPoint(Input):
    """The address in resumeFrom as an input, which is copied into the checkpoint directory."""

    may_be_empty: bool = False
    """The job uploads its own checkpoints there: before the first one there is none."""


class Output(Model):
    """A directory that is uploaded when the program has ended, or whenever the program has stored a checkpoint."""

    model_config = {"json_schema_extra": rules(*cel.OUTPUT)}

    name: DataName = Field(
        description="Name of the output: lower-case letters, digits and '-'. The program reads the path from "
        "ALLRANKS_OUTPUT_NAME, with NAME in upper case and '_' for '-'."
    )
    path: Path = Field(description="Directory into which the program writes. All pods and all attempts share it.")
    to: Text = Field(
        description="Where its files are uploaded: s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or "
        "claim://CLAIM/DIRECTORY.",
    )
    secret: Name | None = Field(
        None, description="Name of a Secret with credentials, as for inputs. Local runs use this machine's credentials."
    )
    when: Literal["Success", "Always", "Checkpoint"] = Field(
        "Success",
        description="Success: when the program has completed. The job succeeds when the files are uploaded. Always: "
        "also when the job fails. Checkpoint: while the job runs, each time the program reports a checkpoint, into "
        "the folder step-STEP of `to`. `path` is the path of `checkpoint`, and the job needs `progress` or `hang`.",
    )
    deadline_seconds: Annotated[int, Field(ge=1, le=315_360_000)] | None = Field(
        None,
        description="Seconds in which the files must be uploaded once the program has ended. An upload that takes "
        "longer ends, and the job fails with the reason OutputFailed. Default: no limit.",
    )

    @property
    def scheme(self) -> str:
        return self.to.partition("://")[0]


Inputs = Annotated[list[Input], Field(min_length=1, max_length=8, json_schema_extra=rules(*cel.DATA_NAMES))]
Outputs = Annotated[list[Output], Field(min_length=1, max_length=8, json_schema_extra=rules(*cel.DATA_NAMES))]


@dataclass(frozen=True, kw_only=True)
class InputStatus(TextPart):
    """The state of an input."""

    name: Annotated[DataName, Field(description="Name of the input, as in spec.inputs.")]
    state: Annotated[
        InputState, Field(description="Pending, Fetching, Ready or Failed. An input that is a volume is Ready.")
    ] = "Pending"
    revision: Annotated[
        Revision | None,
        Field(description="The revision that the ranks read: a commit, an ETag, or a hash of the list of objects."),
    ] = None
    sha256: Annotated[Sha256 | None, Field(description="SHA-256 of the file, or of the list of files.")] = None
    bytes: Annotated[Bytes | None, Field(description="Size of the data in bytes.")] = None
    cached: Annotated[bool | None, Field(description="Whether the data was in the cache before.")] = None
    location: Annotated[
        Location | None,
        Field(
            description="Where the data is fetched on a cluster. Claim: into a volume that all pods share, before they "
            "are created. Node or Pod: by the pods, into a directory of their node or an emptyDir. The revision is "
            "determined before they are created, and Ready refers to it."
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class OutputStatus(TextPart):
    """The state of an output."""

    name: Annotated[DataName, Field(description="Name of the output, as in spec.outputs.")]
    state: Annotated[
        OutputState,
        Field(
            description="Checking, Pending, Uploading, Uploaded or Failed. Checking: the ranks wait until it is "
            "certain that files can be written to the destination."
        ),
    ] = "Pending"
    step: Annotated[
        Bytes | None,
        Field(description="With when: Checkpoint, the step of the newest checkpoint, to which the state refers."),
    ] = None
    checkpoint_time: Annotated[
        Annotated[datetime, Field(strict=False)] | None, Field(description="When that checkpoint was stored.")
    ] = None
    uploaded_step: Annotated[Bytes | None, Field(description="Step of the newest checkpoint that is uploaded.")] = None
    start_time: Annotated[
        Annotated[datetime, Field(strict=False)] | None,
        Field(description="When the program had ended and the upload was due."),
    ] = None
    bytes: Annotated[Bytes | None, Field(description="Size of all files of the directory.")] = None
    files: Annotated[Bytes | None, Field(description="Number of files in the directory.")] = None
    message: Annotated[
        Annotated[str, StringConstraints(max_length=MESSAGE_LENGTH)] | None,
        Field(description="Why the upload of the files failed."),
    ] = None


def claim_of(address: str) -> tuple[str, str]:
    """Return (claim, directory in it) of claim://CLAIM/DIRECTORY."""
    claim, _, below = address.partition("://")[2].partition("/")
    return claim, below.strip("/")


def upper(name: str) -> str:
    """Return the name of an input or an output in names of variables."""
    return name.upper().replace("-", "_")
