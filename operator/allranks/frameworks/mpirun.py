"""A launcher that runs mpirun, and workers in which it starts ranks over ssh: what frameworks with MPI have in common.

In a local run mpirun starts all ranks itself, and the workers only wait.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from types import MappingProxyType

from allranks.frameworks.base import FILES_DIR, SSH_DIR, AttemptContext, Note, Replica, Shared, Wire, Wiring
from allranks.frameworks.hints import LogReader, RootCause
from allranks.frameworks.rank_report import read_rank_report, root_cause

SSH_PORT = 2222
"""An unprivileged port, because the workers' sshd does not run as root."""
PROGRAMS = frozenset({"mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun"})
"""Programs that start the ranks of a command."""
_HOSTFILE = f"{FILES_DIR}/hostfile"
_SSH_ARGUMENTS = f"-F {FILES_DIR}/ssh_config -p {SSH_PORT} -i {SSH_DIR}/ssh-privatekey"
_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


@dataclass(frozen=True)
class Implementation:
    """The options and variables of one implementation of MPI."""

    host: Callable[[str, int], str]
    """(host, slots) -> its line in the hosts file."""
    env: Mapping[str, str]
    """The launcher's variables on a cluster."""
    local_env: Mapping[str, str] = field(default_factory=dict)
    """The launcher's variables in a local run."""
    options: tuple[str, ...] = ()
    """Options of an mpirun that allranks starts."""
    forward: str | None = None
    """The option that passes a variable on to the ranks. None: all are passed."""


def _hydra(prefix: str, launcher: str, arguments: str) -> Implementation:
    """Return the configuration of Hydra, the mpirun of MPICH and of Intel MPI. It accepts ranks without a slot."""
    env = {f"{prefix}_HOST_FILE": _HOSTFILE, f"{prefix}_{launcher}": "ssh", f"{prefix}_{arguments}": _SSH_ARGUMENTS}
    return Implementation(host=lambda host, slots: f"{host}:{slots}", env=env)


IMPLEMENTATIONS: Mapping[str, Implementation] = {
    "OpenMPI": Implementation(
        host=lambda host, slots: f"{host} slots={slots}",
        env={
            "OMPI_MCA_orte_default_hostfile": _HOSTFILE,
            "OMPI_MCA_orte_keep_fqdn_hostnames": "1",
            "OMPI_MCA_plm_rsh_args": _SSH_ARGUMENTS,
            # Open MPI 5 has another launcher, PRRTE, with names of its own.
            "PRTE_MCA_prte_default_hostfile": _HOSTFILE,
            "PRTE_MCA_prte_keep_fqdn_hostnames": "1",
            "PRTE_MCA_plm_ssh_args": _SSH_ARGUMENTS,
        },
        local_env={
            "OMPI_MCA_rmaps_base_oversubscribe": "1",
            "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
            **_AS_ROOT,
            "OMPI_MCA_btl": "self,vader,tcp",
        },
        options=("--allow-run-as-root", "--bind-to", "none"),
        forward="-x",
    ),
    "MPICH": _hydra("HYDRA", "LAUNCHER", "LAUNCHER_EXTRA_ARGS"),
    "Intel": _hydra("I_MPI_HYDRA", "BOOTSTRAP", "BOOTSTRAP_EXEC_EXTRA_ARGS"),
}


def slots(context: AttemptContext) -> int:
    """Return the number of ranks of each worker."""
    number: int | str = context.options.slots_per_worker
    return max(1, context.gpus["worker"]) if isinstance(number, str) else number


def wire(
    context: AttemptContext,
    slots: int,
    implementation: str = "OpenMPI",
    starts_ranks: bool | None = None,
    defaults: Mapping[str, str] = MappingProxyType({}),
) -> Wire:
    """Return the wiring of all pods. `slots`: processes in each worker.

    `starts_ranks`: the launcher's command calls mpirun itself. Default: True if the command is in the launcher's own
    section of the manifest. `defaults`: variables of all ranks, unless the user sets them."""
    ranks = slots * len(context.in_roles("worker"))
    mpi = IMPLEMENTATIONS[implementation]

    def wiring(replica: Replica) -> Wiring:
        if replica.role == "worker":
            if context.local:
                return Wiring(command=("sleep", "infinity"))
            return Wiring(command=_sshd(), ports={"ssh": SSH_PORT}, files=True, ssh_key=True)
        calls_mpirun = replica.role in context.own_command if starts_ranks is None else starts_ranks
        prefix = (
            _launch(replica, context)
            if calls_mpirun
            else (*_launch(replica, context), *_mpirun(replica, context, ranks, mpi, defaults))
        )
        env = mpi.local_env if context.local else mpi.env
        return Wiring(env=env, defaults=defaults, prefix=prefix, files=True, ssh_key=not context.local)

    return wiring


def _launch(launcher: Replica, context: AttemptContext) -> tuple[str, ...]:
    host = "127.0.0.1" if context.local else context.address(launcher, SSH_PORT)[0]
    return ("/bin/sh", f"{FILES_DIR}/mpi_rank.sh", "launch", host)


def _mpirun(
    launcher: Replica, context: AttemptContext, ranks: int, mpi: Implementation, defaults: Mapping[str, str]
) -> tuple[str, ...]:
    # sshd passes none of the container's variables to a rank, so mpirun must forward the launcher's, some by name.
    names = dict.fromkeys([*context.variables.get(launcher.role, ()), *defaults]) if mpi.forward else ()
    forward = [argument for name in names for argument in (mpi.forward or "", name)]
    # Open MPI starts the wrapper of each rank by a parameter. The others have no such parameter.
    wrapper = () if mpi.forward else ("/bin/sh", f"{FILES_DIR}/mpi_rank.sh", "rank", "env")
    return ("mpirun", "-np", str(ranks), *mpi.options, *forward, *wrapper)


def shared(context: AttemptContext, slots: int, implementation: str = "OpenMPI") -> Shared:
    """Return files for mpirun and for its daemons in the workers, which start further daemons in large jobs."""
    if context.local:
        return Shared(files=_rank_helper())
    line = IMPLEMENTATIONS[implementation].host
    hosts = (f"{worker.hostname}.{context.job}.{context.namespace}.svc" for worker in context.in_roles("worker"))
    hostfile = "".join(f"{line(host, slots)}\n" for host in hosts)
    return Shared(files={"hostfile": hostfile, "ssh_config": _SSH_CONFIG, **_rank_helper()}, ssh_key=True)


@cache
def _rank_helper() -> dict[str, str]:
    """Return the wrapper that reports the rank that failed first. A ConfigMap holds it, so no init container is
    needed."""
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


_OPEN_MPI = re.compile(
    r"first process to do so was:\s+Process name: \[\S*,(?P<failed>\d+)\]\s+Exit code:\s+(?P<code>\d+)"
    r"|noticed that process rank (?P<killed>\d+) with PID \d+\s+on node \S+\s+exited\s+on\s+signal (?P<signal>\d+)"
)
_INTEL = re.compile(
    r"=   RANK (?P<rank>\d+) PID \d+ RUNNING AT .*\n"
    r"=   (?:KILLED BY SIGNAL: (?P<signal>\d+)|EXIT STATUS: (?P<code>\d+))"
)
_FRAME = re.compile(r"^(?P<line>[-=])(?P=line){59,}\n(?:(?!-{60,}|={60,}).*\n)*?(?P=line){60,}\n?", re.MULTILINE)


class MpirunLog(LogReader):
    def root_cause(self, message: str) -> RootCause | None:
        return read_mpirun_report(message)


def read_mpirun_report(message: str) -> RootCause | None:
    """Parse the report of mpi_rank.py at the end of the log, else mpirun's. MPICH's does not name the rank."""
    if report := read_rank_report(message):
        return report
    # mpirun reports the rank that ended first. Its log holds the output of all ranks.
    rest = _FRAME.sub("", message)
    if ended := _OPEN_MPI.search(message):
        return root_cause(ended["killed"] or ended["failed"], ended["code"], ended["signal"], rest)
    if ended := _INTEL.search(message):
        return root_cause(ended["rank"], ended["code"], ended["signal"], rest)
    return None


_HOST_OPTIONS = frozenset(
    {"H", "host", "hosts", "hostfile", "default-hostfile", "machinefile", "machine", "f", "ppn", "perhost"}
)
_STARTERS = PROGRAMS | {"horovodrun"}


def notes(arguments: Sequence[str], subject: str, own_launcher: bool) -> list[Note]:
    """Return notes on a command line that calls mpirun. `subject`: name of the launcher, for the note.

    `own_launcher`: the command is the launcher's own, which starts the ranks itself, on the hosts that allranks writes.
    Any other command is the program of a rank."""
    if not starts_ranks(arguments):
        return []
    if not own_launcher:
        program = arguments[0].rpartition("/")[2]
        return [(0, f"allranks starts the ranks of {subject}: remove {program} and its options, and keep the program")]
    return host_notes(arguments)


def starts_ranks(arguments: Sequence[str]) -> bool:
    """Return whether the command is an mpirun."""
    return bool(arguments) and arguments[0].rpartition("/")[2] in _STARTERS


def host_notes(arguments: Sequence[str]) -> list[Note]:
    """Return options of mpirun that name hosts."""
    hosts = [i for i, text in enumerate(arguments) if text.startswith("-") and text.lstrip("-") in _HOST_OPTIONS]
    return [(i, f"allranks writes the hostfile of mpirun: remove {arguments[i]} and its value") for i in hosts]
