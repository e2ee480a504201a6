"""The parts of an archive that do not depend on where the job ran: what it has, and the versions."""

from __future__ import annotations

import platform
from typing import Any

from allranks.version import __version__

README = """\
The job {name}, collected by `allranks debug` on {at} UTC.

describe.txt   what `allranks describe` prints: start here
report.txt     what `allranks report` prints: attempts, progress, lost time
code.diff      what the code differs from its commit in
job.yaml       the manifest
status.yaml    the status: the last failure, past attempts, restarts
events.yaml    Events of the job and its pods, the oldest first
pods/          the pods that exist
logs/          their logs, one file for each container, with the time (UTC) of each line
stacks/        stack dumps that ranks printed when the job hung
versions.yaml  of allranks, Python and Kubernetes

Masked, as <masked>: values of variables and options whose names contain TOKEN, SECRET, PASSWORD, CREDENTIAL or KEY,
the same values wherever else they occur, and logins in URLs. Other secrets that the program prints or that are passed
in other ways are not recognised: look at the files before you give them to somebody.
{missing}"""


def versions(further: dict[str, Any]) -> dict[str, Any]:
    own = {"allranks": __version__, "python": platform.python_version(), "system": platform.platform()}
    return {**own, **further}
