"""MPI: any program whose ranks mpirun starts, with Open MPI, MPICH or Intel MPI, without Horovod."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from allranks.fields import Model, Rule
from allranks.frameworks import mpirun
from allranks.frameworks.base import AttemptContext, Framework, RoleKind, Shared, Wire
from allranks.frameworks.command_line import Launch, Note, Word, basename, script_of, starts
from allranks.frameworks.hints import DoctorProbe, ScriptHints

_PYTHON = re.compile(r"python[0-9.]*")


def _waits_after_exception(command: Sequence[str], of_launcher: bool) -> Iterator[Note]:
    """Yield a warning of each program of Python whose other ranks wait for ever after an exception in one of them.

    In a local run `inpod/startup/sitecustomize.py` ends them. `of_launcher`: it is the launcher's own command, which
    runs once."""
    calls = [start.program for start in starts(command) if start.kind == "mpirun"]
    if not calls and not of_launcher and script_of(command) is None:
        calls = [tuple(Word(text, index) for index, text in enumerate(command))]
    for program in calls:
        if (
            program
            and _PYTHON.fullmatch(basename(program[0].text))
            and not any(before.text == "-m" and word.text == "mpi4py" for before, word in pairwise(program))
        ):
            name = program[0].text
            yield (
                program[0].argument,
                f"on a cluster, the ranks of mpi4py wait for one that ends by an exception: write {name} -m mpi4py",
            )


class MpiOptions(Model):
    """Options of MPI."""

    implementation: Literal["OpenMPI", "MPICH", "Intel"] = Field(
        "OpenMPI", description="The MPI in the image. It determines the form of the hosts file and its variables."
    )
    slots_per_worker: Annotated[int, Field(ge=1, le=1024)] | Literal["Auto"] = Field(
        "Auto",
        description="Ranks in each worker pod. Auto: one per GPU of the pod, or one without GPUs.",
        json_schema_extra={"x-kubernetes-int-or-string": True},
    )


class Mpi(Framework):
    name = "mpi"
    description = "MPI"
    options = MpiOptions
    roles: ClassVar[Mapping[str, RoleKind]] = {
        "worker": RoleKind("The ranks."),
        "launcher": RoleKind("Runs mpirun.", max_replicas=1, ranked=False),
    }
    launcher = "mpirun"
    # An exception in one rank of mpi4py leaves the others waiting, unless the program is started in this way.
    script = ScriptHints(
        imports=frozenset({"mpi4py"}),
        joins_group=frozenset({"COMM_WORLD"}),
        launchers=frozenset({"mpirun"}),
        command=("python3", "-m", "mpi4py"),
        rank="${OMPI_COMM_WORLD_RANK:-$PMI_RANK}",
        roles={"launcher": 1},
    )
    log = mpirun.MpirunLog()
    probe = DoctorProbe("mpi4py")
    reserved_env = frozenset(
        {"OMPI_MCA_orte_default_hostfile", "PRTE_MCA_prte_default_hostfile"}
        | {"HYDRA_HOST_FILE", "I_MPI_HYDRA_HOST_FILE"}
    )
    launcher_env = (
        *("OMPI_", "PMIX_", "PMI_", "PRTE_", "HYDRA_", "HYDI_", "I_MPI_HYDRA_"),
        *("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    )
    rules = (
        Rule(
            rule="has(self.roles.launcher) && self.roles.launcher.replicas > 0",
            message="mpi needs a launcher, whose pod runs mpirun: add launcher: {replicas: 1}",
            field=".roles.launcher",
        ),
        Rule(
            rule="has(self.roles.worker) && self.roles.worker.replicas > 0",
            message="mpi needs at least one worker",
            field=".roles.worker",
        ),
    )

    def wire(self, context: AttemptContext) -> Wire:
        return mpirun.wire(context, mpirun.slots(context), context.options.implementation)

    def shared(self, context: AttemptContext) -> Shared:
        return mpirun.shared(context, mpirun.slots(context), context.options.implementation)

    def processes(self, context: AttemptContext, role: str) -> int:
        return mpirun.slots(context) if role == "worker" else 1

    def success_target(self, replicas: Mapping[str, int], elastic: bool = False) -> tuple[str, int | None]:
        return ("launcher", 0)

    def long_running_roles(self, replicas: Mapping[str, int]) -> frozenset[str]:
        return frozenset({"worker"})  # they run sshd

    def launch(self, context: AttemptContext, role: str) -> Launch:
        launch = mpirun.launch(self, context, role)
        if role != "launcher":
            return launch
        late = _waits_after_exception(launch.command, role in context.own_command)
        return replace(launch, warnings=(*launch.warnings, *late))
