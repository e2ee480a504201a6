"""Horovod: workers that meet at a gloo rendezvous without ssh, or a launcher that starts ranks by MPI over ssh."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from importlib import resources
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from allranks.fields import Model, Port, Rule
from allranks.frameworks.base import (
    FILES_DIR,
    HELPER_DIR,
    SECRET_DIR,
    SSH_DIR,
    AttemptContext,
    Framework,
    Note,
    Replica,
    RoleKind,
    RootCause,
    Scope,
    Shared,
    Wire,
    Wiring,
)


class HorovodOptions(Model):
    """Options of Horovod."""

    controller: Literal["Gloo", "MPI"] = Field(
        "Gloo",
        description="How ranks are started and find one another: Gloo needs no ssh and no launcher, MPI needs both.",
    )
    slots_per_worker: Annotated[int, Field(ge=1, le=64)] | Literal["Auto"] = Field(
        "Auto",
        description="Processes in each worker pod. Auto: one per GPU of the pod, or one without GPUs.",
        json_schema_extra={"x-kubernetes-int-or-string": True},
    )
    port: Port = Field(29400, description="Port of the gloo rendezvous in the pod of rank 0.")


SSH_PORT = 2222
"""An unprivileged port, because the workers' sshd does not run as root."""


class Horovod(Framework):
    name = "horovod"
    description = "Horovod"
    options = HorovodOptions
    roles: ClassVar[Mapping[str, RoleKind]] = {
        "worker": RoleKind("The ranks."),
        "launcher": RoleKind("Runs mpirun, for controller MPI.", max_replicas=1, ranked=False),
    }
    script_imports = frozenset({"horovod"})
    joins_group = frozenset({"init"})
    reserved_env = frozenset(
        {"HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE", "HOROVOD_CROSS_RANK"}
        | {"HOROVOD_CROSS_SIZE", "HOROVOD_HOSTNAME", "HOROVOD_CONTROLLER", "HOROVOD_GLOO_RENDEZVOUS_ADDR"}
        | {"HOROVOD_GLOO_RENDEZVOUS_PORT"}
    )
    launcher_env = ("HOROVOD_", "OMPI_", "PMIX_", "PMI_", "PRTE_")
    elastic = "absorbs"
    rules = (
        Rule(
            rule="!has(self.elastic) || !has(self.success)",
            message="cannot be set in an elastic Horovod job, which is complete when worker 0 is: remove it",
            field=".success",
        ),
        Rule(
            rule="!has(self.elastic) || !has(self.horovod) || self.horovod.controller in ['Gloo', 'gloo']",
            message="elastic Horovod needs controller Gloo: MPI cannot add or remove ranks of a running job",
            field=".elastic",
        ),
        Rule(
            rule="(has(self.horovod) && self.horovod.controller in ['MPI', 'mpi']) == "
            "(has(self.roles.launcher) && self.roles.launcher.replicas > 0)",
            message="controller MPI needs a launcher, and controller Gloo must not have one",
            field=".roles.launcher",
        ),
        Rule(
            rule="has(self.roles.worker) && self.roles.worker.replicas > 0",
            message="horovod needs at least one worker",
            field=".roles.worker",
        ),
    )

    def wire(self, context: AttemptContext) -> Wire:
        if context.options.controller == "MPI":
            return _mpi_wire(context)
        return _elastic_wire(context) if context.elastic else _gloo_wire(context)

    def shared(self, context: AttemptContext) -> Shared:
        if context.options.controller != "MPI":
            return Shared(secret=True)
        if context.local:
            return Shared(files=_rank_helper())
        return Shared(files=_files(context), ssh_key=True)

    def scope(self, role: str, index: int, replicas: Mapping[str, int], elastic: bool = False) -> Scope:
        # All other workers need the first one, where the rendezvous is.
        return "Pod" if elastic and index else super().scope(role, index, replicas, elastic)

    def long_running_roles(self, replicas: Mapping[str, int]) -> frozenset[str]:
        return frozenset({"worker"} if replicas.get("launcher") else ())  # they run sshd

    def notes(self, arguments: Sequence[str], role: str, own_command: bool) -> list[Note]:
        return mpi_notes(arguments, own_launcher=role == "launcher" and own_command)

    def root_cause(self, message: str) -> RootCause | None:
        return read_mpirun_report(message)

    def processes(self, context: AttemptContext, role: str) -> int:
        return _slots(context) if role == "worker" else 1

    def success_target(self, replicas: Mapping[str, int], elastic: bool = False) -> tuple[str, int | None]:
        if elastic:
            return ("worker", 0)  # it exits when all have finished; another one may still be unschedulable
        return ("launcher", 0) if replicas.get("launcher") else ("worker", None)


_HELPER_REPORT = re.compile(
    r"allranks: rank (?P<rank>\d+) failed first, at (?P<time>\d+-\d\d-\d\d_\d\d:\d\d:\d\d), "
    r"by (?:exit code (?P<code>\d+)|signal (?P<signal>\d+))(?:\. Its last lines:\n)?"
)
_MPIRUN_REPORT = re.compile(
    r"first process to do so was:\s+Process name: \[\[\d+,\d+\],(?P<failed>\d+)\]\s+Exit code:\s+(?P<code>\d+)"
    r"|noticed that process rank (?P<killed>\d+) with PID \d+ on node \S+ exited on signal (?P<signal>\d+)"
)
_FRAME = re.compile(r"^-{60,}\n(?:(?!-{60,}).*\n)*?-{60,}\n?", re.MULTILINE)


def read_mpirun_report(message: str) -> RootCause | None:
    """The rank that failed first, from the report of mpi_rank.py at the end of the log, else from that of mpirun."""
    for found in reversed([*_HELPER_REPORT.finditer(message)]):
        with contextlib.suppress(ValueError):  # the program can print anything
            time = datetime.strptime(found["time"], "%Y-%m-%d_%H:%M:%S")
            return _root_cause(found["rank"], found["code"], found["signal"], message[found.end() :], time)
    # mpirun reports the rank that ended first. Its log holds the output of all ranks.
    ended = _MPIRUN_REPORT.search(message)
    if not ended:
        return None
    return _root_cause(ended["killed"] or ended["failed"], ended["code"], ended["signal"], _FRAME.sub("", message))


def _root_cause(rank: str, code: str | None, signal: str | None, lines: str, time: datetime | None = None) -> RootCause:
    number = int(signal) if signal else None
    exit_code = 128 + number if number else int(code or 1)
    ended = f"rank {rank} was ended by signal {number}" if number else f"rank {rank} exited with code {exit_code}"
    return RootCause(int(rank), exit_code, number, lines.strip() or ended, time)


_HOST_OPTIONS = frozenset({"H", "host", "hostfile", "default-hostfile", "machinefile"})


def mpi_notes(arguments: Sequence[str], own_launcher: bool) -> list[Note]:
    """`own_launcher`: the command is the launcher's own, which starts the ranks itself, on the hosts that allranks
    writes. Any other command is the program of a rank."""
    program = arguments[0].rpartition("/")[2] if arguments else ""
    if program not in ("horovodrun", "mpirun", "mpiexec"):
        return []
    if not own_launcher:
        return [(0, f"allranks starts the ranks of Horovod: remove {program} and its options, and keep the program")]
    hosts = [i for i, text in enumerate(arguments) if text.startswith("-") and text.lstrip("-") in _HOST_OPTIONS]
    return [(i, f"allranks writes the hostfile of mpirun: remove {arguments[i]} and its value") for i in hosts]


def _slots(context: AttemptContext) -> int:
    slots: int | str = context.options.slots_per_worker
    return max(1, context.gpus["worker"]) if isinstance(slots, str) else slots


_DEFAULTS = {"TF_USE_LEGACY_KERAS": "1"}
"""Horovod's optimizers and callbacks do not support Keras 3: its variables have no `ref`."""

_SECRET = {"ALLRANKS_RENDEZVOUS_SECRET_FILE": f"{SECRET_DIR}/secret"}


def _gloo_wire(context: AttemptContext) -> Wire:
    """The helper in each worker starts its slots. The first one also serves the rendezvous, as horovodrun does."""
    slots = _slots(context)
    workers = context.ranked()
    first = workers[0]
    address, port = context.address(first, context.options.port)
    common = {
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        **_SECRET,
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_SIZE": str(slots * len(workers)),
        "HOROVOD_LOCAL_SIZE": str(slots),
        "HOROVOD_CROSS_SIZE": str(len(workers)),
    }
    # The helper makes the list of hosts from it: a list of thousands does not fit into a variable.
    before, _, attempt = first.hostname.rsplit("-", 2)
    hosts = f"{before}-{{}}-{attempt}:{slots}"

    def wiring(worker: Replica) -> Wiring:
        env = common | {"HOROVOD_HOSTNAME": worker.hostname, "HOROVOD_CROSS_RANK": str(worker.node_rank)}
        if slots == 1:
            env |= {"HOROVOD_RANK": str(worker.node_rank), "HOROVOD_LOCAL_RANK": "0"}
        if worker == first:
            env["ALLRANKS_HOROVOD_HOSTS"] = hosts
        return Wiring(
            env=env,
            # The default of 30 s is too short if ranks load their data before hvd.init() at different speeds.
            defaults=_DEFAULTS | {"HOROVOD_GLOO_TIMEOUT_SECONDS": "600"},
            ports={"rendezvous": context.options.port} if worker == first else {},
            prefix=("python3", f"{HELPER_DIR}/horovod_gloo.py"),
            helper=True,
            secret=True,
        )

    return wiring


def _elastic_wire(context: AttemptContext) -> Wire:
    """The helper in each worker offers its slots to Horovod's elastic driver, which runs in the first worker's pod.

    The wiring must not depend on the current number of workers, because pods that run are not updated.
    """
    assert context.elastic
    workers = context.ranked()
    first = workers[0]
    address, port = context.address(first, context.options.port)
    common = {
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_ELASTIC": "1",
        **_SECRET,
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_LOCAL_SIZE": str(_slots(context)),
        "ALLRANKS_HOROVOD_MIN": str(context.elastic.min_workers),
        "ALLRANKS_HOROVOD_MAX": str(context.elastic.max_workers),
        "ALLRANKS_HOROVOD_WAIT_SECONDS": str(context.elastic.wait_seconds),
    }

    def wiring(worker: Replica) -> Wiring:
        env = common | {"HOROVOD_HOSTNAME": worker.hostname}
        if worker == first:
            env["ALLRANKS_HOROVOD_WORKERS"] = str(len(workers))
        return Wiring(
            env=env,
            defaults=_DEFAULTS,
            ports={"rendezvous": context.options.port} if worker == first else {},
            prefix=("python3", f"{HELPER_DIR}/horovod_elastic.py"),
            helper=True,
            secret=True,
        )

    return wiring


def _mpi_wire(context: AttemptContext) -> Wire:
    """The launcher runs mpirun, which starts ranks through the workers' sshd. In a local run mpirun starts all ranks
    itself, and the workers only wait."""
    ranks = str(_slots(context) * len(context.of("worker")))

    def wiring(replica: Replica) -> Wiring:
        if replica.role == "worker":
            if context.local:
                return Wiring(command=("sleep", "infinity"))
            return Wiring(command=_sshd(), ports={"ssh": SSH_PORT}, files=True, ssh_key=True)
        return _launcher_wiring(replica, context, ranks)

    return wiring


def _launcher_wiring(replica: Replica, context: AttemptContext, ranks: str) -> Wiring:
    host = "127.0.0.1" if context.local else context.address(replica, SSH_PORT)[0]
    prefix: tuple[str, ...] = ("/bin/sh", f"{FILES_DIR}/mpi_rank.sh", "launch", host)
    if replica.role not in context.own_command:
        # sshd passes none of the container's variables to a rank, so mpirun must forward the launcher's by name.
        names = dict.fromkeys([*context.variables.get(replica.role, ()), *_DEFAULTS])
        forward = [arg for name in names for arg in ("-x", name)]
        prefix += ("mpirun", "-np", ranks, "--allow-run-as-root", "--bind-to", "none", *forward)
    if context.local:
        here = {"OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1"}
        here |= {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_btl": "self,vader,tcp"}
        return Wiring(env=here, defaults=_DEFAULTS, prefix=prefix, files=True)
    env = {
        "OMPI_MCA_orte_default_hostfile": f"{FILES_DIR}/hostfile",
        "OMPI_MCA_orte_keep_fqdn_hostnames": "1",
        "OMPI_MCA_plm_rsh_args": f"-F {FILES_DIR}/ssh_config -p {SSH_PORT} -i {SSH_DIR}/ssh-privatekey",
    }
    return Wiring(env=env, defaults=_DEFAULTS, prefix=prefix, files=True, ssh_key=True)


def _files(context: AttemptContext) -> dict[str, str]:
    """Files for mpirun and for its daemons in the workers, which start further daemons in large jobs."""
    slots = _slots(context)
    hosts = (f"{worker.hostname}.{context.job}.{context.namespace}.svc" for worker in context.of("worker"))
    hostfile = "".join(f"{host} slots={slots}\n" for host in hosts)
    return {"hostfile": hostfile, "ssh_config": _SSH_CONFIG, **_rank_helper()}


@cache
def _rank_helper() -> dict[str, str]:
    """The wrapper that reports which rank failed first. It is in the ConfigMap, so that no init container is needed."""
    program = resources.files("allranks.inpod").joinpath("mpi_rank.py").read_text()
    return {"mpi_rank.py": program, "mpi_rank.sh": _RANK_HELPER}


# A job must work without the wrapper: Python in the PATH of an ssh session may be missing or old.
_RANK_HELPER = """\
if python3 -IS -c "import sys; sys.exit(sys.version_info < (3, 8))" 2>/dev/null; then
  exec python3 -IS "${0%.sh}.py" "$@"
fi
shift 2
exec "$@"
"""


# ssh retries a refused connection, but not an unresolved name, and DNS has a pod only some time after its creation.
# `Match exec` runs before ssh resolves the name. ssh continues whatever its result is.
_SSH_CONFIG = """\
Match exec "i=0; until getent hosts %h || [ $((i += 1)) -gt 300 ]; do sleep 0.2; done"
Match all
  StrictHostKeyChecking no
  UserKnownHostsFile /dev/null
  LogLevel ERROR
  ConnectionAttempts 60
"""


def _sshd() -> tuple[str, ...]:
    options = {
        "Port": str(SSH_PORT),
        "HostKey": f"{SSH_DIR}/ssh-privatekey",
        "AuthorizedKeysFile": f"{SSH_DIR}/ssh-publickey",
        "PidFile": "none",
        "StrictModes": "no",
        "UsePAM": "no",
        "PasswordAuthentication": "no",
        "AcceptEnv": "ALLRANKS_* OMPI_*",
    }
    return ("/usr/sbin/sshd", "-D", "-e", "-f", "/dev/null", *(f"-o{key}={value}" for key, value in options.items()))
