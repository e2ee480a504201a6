"""The CEL rules of `spec.inputs` and `spec.outputs`, as in `cel_rules`."""

from __future__ import annotations

from allranks.fields import Rule

_DATA_PATH = (
    Rule(
        rule="self.path != '/' && !self.path.matches('(^|/)[.][.]?(/|$)') && !self.path.contains(':')",
        message="must be a directory below /, without ':' and without . or .. as a part",
        field=".path",
    ),
)

_STREAM = "has(self.mode) && self.mode == 'Stream'"

INPUT = (
    Rule(
        rule=f"!has(self.path) || ({_DATA_PATH[0].rule})",
        message=_DATA_PATH[0].message,
        field=".path",
    ),
    Rule(
        rule=f"has(self.path) || ({_STREAM})",
        message="must be set: the directory in which the pods find the data",
        field=".path",
    ),
    Rule(
        rule=f"!has(self.path) || !({_STREAM})",
        message="mode: Stream has no directory: remove path. The program reads the address from ALLRANKS_INPUT_NAME",
        field=".path",
    ),
    Rule(
        rule="self.from.matches('^((s3|gs|az)://[^/]+(/.+)?|https?://[^/]+/.+|git[+]https?://[^/]+/.+|"
        "hf://((datasets|models)/)?[^/]+/.+|claim://[^/]+(/.+)?|image://.+)$')",
        message="must be s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, https://HOST/FILE, "
        "hf://datasets/OWNER/NAME, hf://models/OWNER/NAME, git+https://HOST/REPOSITORY, claim://CLAIM/DIRECTORY or "
        "image://REFERENCE",
        field=".from",
    ),
    Rule(
        rule="!self.from.matches('://[^/]*@|[?&](X-Amz-|sig=|token=)')",
        message="must not contain credentials, which everybody who can read the job could use: name a Secret with them "
        "in secret",
        field=".from",
    ),
    Rule(
        rule="!self.from.matches('^(claim|s3|gs|az|hf)://') || !self.from.matches('/[.][.]?(/|$)')",
        message="must not have . or .. as a part",
        field=".from",
    ),
    Rule(
        rule="!has(self.mode) || (self.mode == 'Mount') == self.from.matches('^(claim|image)://')",
        message="must be Mount for claim:// and image://, which are volumes, and Copy or Stream for all others",
        field=".mode",
    ),
    Rule(
        rule=f"!({_STREAM}) || !self.from.startsWith('git+')",
        message="must be Copy for git+https://, whose files cannot be read one by one",
        field=".mode",
    ),
    Rule(
        rule=f"!({_STREAM}) || !has(self.sha256)",
        message="cannot be checked with mode: Stream, because the program reads the data itself: set revision instead",
        field=".sha256",
    ),
    Rule(
        rule="!self.from.matches('^(claim|image)://') || !(has(self.secret) || has(self.revision) || has(self.sha256))",
        message="claim:// and image:// are volumes, which have no secret, revision or sha256: remove these",
        field=".from",
    ),
    Rule(
        rule="!(has(self.revision) && has(self.sha256))",
        message="set revision or sha256, not both: each of them determines the data",
        field=".sha256",
    ),
)

INPUT_CACHE = (
    Rule(
        rule=f"!has(self.hostPath) || ({_DATA_PATH[0].rule.replace('self.path', 'self.hostPath')})",
        message=_DATA_PATH[0].message,
        field=".hostPath",
    ),
)
"""Of `spec.inputCache` of a TrainingPool."""

OUTPUT = (
    *_DATA_PATH,
    Rule(
        rule="self.to.matches('^((s3|gs|az)://[^/]+/.+|claim://[^/]+(/.+)?)$')",
        message="must be s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or claim://CLAIM/DIRECTORY",
        field=".to",
    ),
    Rule(
        rule="!self.to.matches('/[.][.]?(/|$)')",
        message="must not have . or .. as a part",
        field=".to",
    ),
)

CHECKPOINT_OUTPUTS = (
    Rule(
        rule="!has(self.outputs) || self.outputs.all(o, o.when != 'Checkpoint' || "
        "(has(self.checkpoint) && o.path == self.checkpoint.path && (has(self.progress) || has(self.hang))))",
        message="when: Checkpoint uploads the checkpoints that the program reports: set checkpoint, and progress or "
        "hang, and choose the path of checkpoint",
        field=".outputs",
    ),
)
"""Of the spec of a job."""

DATA_NAMES = (
    Rule(
        rule="self.all(a, self.exists_one(b, b.name == a.name))",
        message="two of them have the same name: choose another one",
    ),
)
