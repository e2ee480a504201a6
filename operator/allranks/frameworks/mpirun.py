"""A launcher that runs mpirun, and workers in which it starts ranks over ssh: what frameworks with MPI have in common.

In a local run mpirun starts all ranks itself, and the workers only wait. Commands of mpirun and horovodrun that were
written for other systems are read here.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from types import MappingProxyType

from allranks.frameworks.base import (
    FILES_DIR,
    ROOT_SSH_DIR,
    SSH_DIR,
    AttemptContext,
    Framework,
    Replica,
    Shared,
    Wire,
    Wiring,
)
from allranks.frameworks.command_line import (
    Launch,
    Note,
    Option,
    Start,
    Word,
    basename,
    calls,
    edited,
    line_to_write,
    script_of,
    starts,
)
from allranks.frameworks.hints import LogReader, RootCause
from allranks.frameworks.rank_report import read_rank_report, root_cause

SSH_PORT = 2222
"""An unprivileged port, because the workers' sshd may not run as root."""
_HOSTFILE = f"{FILES_DIR}/hostfile"
_SSH_ARGUMENTS = f"-F {FILES_DIR}/ssh_config -p {SSH_PORT}"
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
    defaults: Mapping[str, str] = field(default_factory=dict)
    """Variables of the launcher, unless the user sets them."""


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
            "OMPI_MCA_btl": "self,vader,tcp",
        },
        options=("--allow-run-as-root", "--bind-to", "none"),
        forward="-x",
        defaults=_AS_ROOT,  # for an mpirun in the program of an image that runs as root
    ),
    "MPICH": _hydra("HYDRA", "LAUNCHER", "LAUNCHER_EXTRA_ARGS"),
    "Intel": _hydra("I_MPI_HYDRA", "BOOTSTRAP", "BOOTSTRAP_EXEC_EXTRA_ARGS"),
}


_OF_CONNECTION = frozenset(
    {"plm_rsh_args", "plm_rsh_agent", "plm_ssh_args", "plm_ssh_agent", "orte_rsh_agent", "pls_rsh_agent"}
    | {"orte_default_hostfile", "prte_default_hostfile", "orte_keep_fqdn_hostnames", "prte_keep_fqdn_hostnames"}
)
"""Parameters of Open MPI by which mpirun reaches the workers. A value of the user would replace the one of allranks."""
CONNECTION = frozenset(
    {name for mpi in IMPLEMENTATIONS.values() for name in mpi.env}
    | {f"{prefix}{name}" for prefix in ("OMPI_MCA_", "PRTE_MCA_") for name in _OF_CONNECTION}
    | {"HYDRA_LAUNCHER_EXEC", "I_MPI_HYDRA_BOOTSTRAP_EXEC", "RSH_COMMAND"}
)
"""Variables with which mpirun reaches the workers."""


_EXPECTED = {"/etc/mpi/hostfile": "hostfile", "/etc/ssh/ssh_config.d/allranks.conf": "ssh_config.d"}
"""Where scripts for the MPI operator read the hosts, and where OpenSSH reads the options of a plain `ssh HOST`."""


def slots(context: AttemptContext) -> int:
    """Return the number of ranks of each worker."""
    number: int | str = context.options.slots_per_worker
    return max(1, context.gpus["worker"]) if isinstance(number, str) else number


def wire(
    context: AttemptContext,
    slots: int,
    implementation: str = "OpenMPI",
    defaults: Mapping[str, str] = MappingProxyType({}),
) -> Wire:
    """Return the wiring of all pods. `slots`: processes in each worker. `defaults`: variables of all ranks, unless the
    user sets them.

    The launcher's command calls mpirun itself if it is in the launcher's own section of the manifest, or has an mpirun.
    """
    ranks = slots * len(context.in_roles("worker"))
    mpi = IMPLEMENTATIONS[implementation]
    if slots > 1 and not context.local:
        defaults = {**defaults, "OMP_NUM_THREADS": context.threads("worker", slots)}

    def wiring(replica: Replica) -> Wiring:
        if replica.role == "worker":
            if context.local:
                return Wiring(command=("sleep", "infinity"))
            return Wiring(command=_sshd(), ports={"ssh": SSH_PORT}, files=True, ssh_key=True)
        calls_mpirun = replica.role in context.own_command or starts_ranks(context.commands.get(replica.role, ()))
        prefix = (
            _launch(replica, context)
            if calls_mpirun
            else (*_launch(replica, context), *_mpirun(replica, context, ranks, mpi, defaults))
        )
        merged = {**mpi.defaults, **defaults}
        if context.local:
            return Wiring(env=mpi.local_env, defaults=merged, prefix=prefix, files=True)
        return Wiring(env=mpi.env, defaults=merged, prefix=prefix, files=True, file_mounts=_EXPECTED, ssh_key=True)

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
    files = {"hostfile": hostfile, "ssh_config": _SSH_CONFIG, "ssh_config.d": _for_plain_ssh(context)}
    return Shared(files={**files, **_rank_helper()}, ssh_key=True)


def _for_plain_ssh(context: AttemptContext) -> str:
    """Return the configuration of an ssh that scripts start themselves, for the hosts of this job alone."""
    hosts = f"*.{context.job}.{context.namespace}.svc"
    wait, options = _SSH_CONFIG.split("Match all\n")
    options = f"  Port {SSH_PORT}\n{options}".replace("Match ", f"Match host {hosts} ")
    return f"{wait.replace('Match ', f'Match host {hosts} ', 1)}Match host {hosts}\n{options}"


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
# The host key of workers is the job's key, so the launcher sends variables to no other host. A Secret that an earlier
# version created has no `ssh-knownhosts`: without the file, `accept-new` accepts any key.
_SSH_CONFIG = f"""\
Match exec "i=0; until getent hosts %h || [ $((i += 1)) -gt 300 ]; do sleep 0.2; done"
Match all
  StrictHostKeyChecking accept-new
  UserKnownHostsFile {SSH_DIR}/ssh-knownhosts
  GlobalKnownHostsFile /dev/null
  HostKeyAlgorithms ssh-ed25519
  IdentitiesOnly yes
  BatchMode yes
  ForwardAgent no
  ForwardX11 no
  LogLevel ERROR
  ConnectionAttempts 60
Match localuser root
  IdentityFile {ROOT_SSH_DIR}/ssh-privatekey
Match localuser *,!root
  IdentityFile {SSH_DIR}/ssh-privatekey
"""


def _sshd() -> tuple[str, ...]:
    options = {
        "Port": str(SSH_PORT),
        "AuthorizedKeysFile": f"{SSH_DIR}/ssh-publickey",
        "PidFile": "none",
        "StrictModes": "no",
        "UsePAM": "no",
        "AuthenticationMethods": "publickey",
        "PasswordAuthentication": "no",
        "KbdInteractiveAuthentication": "no",
        "PermitRootLogin": "prohibit-password",
        "DisableForwarding": "yes",
        "PermitTTY": "no",
        "PermitUserRC": "no",
        "AcceptEnv": "ALLRANKS_* OMPI_*",
    }
    words = ("/usr/sbin/sshd", "-D", "-e", "-f", "/dev/null", *(f"-o{key}={value}" for key, value in options.items()))
    return ("/bin/sh", "-c", _SSHD, "sshd", *words)


# An sshd that runs as root needs a directory, which Debian makes when it boots.
_SSHD = f"""\
key={SSH_DIR}/ssh-privatekey
[ "$(id -u)" != 0 ] || {{ mkdir -p /run/sshd; key={ROOT_SSH_DIR}/ssh-privatekey; }}
exec "$@" "-oHostKey=$key"
"""


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


# --- commands of mpirun and horovodrun --------------------------------------------------------------------------------

_HOST_FILES = frozenset({"hostfile", "default-hostfile", "machinefile", "f"})
_HOSTS = _HOST_FILES | {"H", "host", "hosts", "machine"}
"""Options with the hosts, which allranks writes into a file of its own."""
_RANKS = frozenset({"np", "n", "c", "num-proc"})
_SETS = {
    "mpirun": _HOSTS | _RANKS | {"ppn", "perhost", "npernode", "allow-run-as-root"},
    "horovodrun": _HOSTS
    | _RANKS
    | {"p", "ssh-port", "i", "ssh-identity-file", "slots", "slots-per-host", "host-discovery-script"}
    | {"network-interfaces", "network-interface", "gloo", "mpi", "verbose", "disable-cache"},
}
"""Options of what allranks sets: the number of ranks, the hosts and how to reach them."""
_USUAL = {("bind-to", "none"), ("map-by", "slot"), ("bootstrap", "ssh"), ("launcher", "ssh")}
"""Options with the value that mpirun has when allranks starts it."""
_VARIABLES = {
    "timeline-filename": "HOROVOD_TIMELINE",
    "fusion-threshold-mb": "HOROVOD_FUSION_THRESHOLD",
    "cycle-time-ms": "HOROVOD_CYCLE_TIME",
    "log-level": "HOROVOD_LOG_LEVEL",
    "start-timeout": "HOROVOD_GLOO_TIMEOUT_SECONDS",
}
"""Options of horovodrun with the variables that mean the same."""


@dataclass
class Request:
    """The ranks that a command of mpirun or horovodrun asks for."""

    ranks: str | None = None
    """The number of ranks; None if the command does not determine it."""
    least: str | None = None
    most: str | None = None
    """Bounds of elastic Horovod."""
    env: dict[str, str] = field(default_factory=dict)
    """Variables that mean the same as options."""
    set_by_allranks: list[Option] = field(default_factory=list)
    connection: list[Option] = field(default_factory=list)
    """Parameters by which mpirun would reach the workers in another way."""
    unknown: list[Option] = field(default_factory=list)
    """Options without a counterpart."""


def request(start: Start) -> Request:
    """Return what the options of mpirun or horovodrun ask for."""
    out = Request()
    for option in start.options:
        if option.name in ("min-np", "min-num-proc"):
            out.least = option.value
        elif option.name in ("max-np", "max-num-proc"):
            out.most = option.value
        elif option.name in _SETS[start.kind]:
            out.set_by_allranks.append(option)
        elif _connects(option):
            out.connection.append(option)
        elif not _has_variable(start.kind, option, out.env):
            out.unknown.append(option)
    if ranks := start.option(*_RANKS):
        out.ranks = ranks.value
    elif (hosts := start.option("H", "hosts", "host")) and not hosts.variable:
        slots = [host.rpartition(":")[2] if ":" in host else "1" for host in hosts.value.split(",")]
        out.ranks = str(sum(map(int, slots))) if all(map(str.isdigit, slots)) else None
    return out


def _connects(option: Option) -> bool:
    """Return whether an option is a parameter by which mpirun reaches the workers."""
    if option.name in ("launcher-exec", "bootstrap-exec"):
        return True
    return len(option.values) == 2 and option.name.endswith("mca") and option.values[0] in _OF_CONNECTION


_HYDRA = {"iface": "IFACE", "rmk": "RMK"}
"""Options of Hydra, and the end of the variables that mean the same."""
_PRINTS = frozenset({"print-rank-map", "prepend-rank", "print-all-exitcodes", "verbose", "v"})
"""Options that change only what mpirun prints."""


def _has_variable(kind: str, option: Option, env: dict[str, str]) -> bool:
    """Return whether an option can be left out. Variables that mean the same are added to `env`."""
    name, values = option.name, option.values
    if kind == "horovodrun":
        if variable := _VARIABLES.get(name):
            is_size = name == "fusion-threshold-mb" and option.value.isdigit()
            env[variable] = str(int(option.value) << 20) if is_size else option.value
        return variable is not None
    key, equals, value = option.value.partition("=")
    if name == "x" and not equals:
        return True  # it forwards a variable: allranks forwards all of them
    if name in ("x", "genv", "env") and equals:
        env[key] = value
    elif name in _HYDRA:
        env[f"HYDRA_{_HYDRA[name]}"] = env[f"I_MPI_HYDRA_{_HYDRA[name]}"] = option.value
    elif name in ("mca", "gmca", "genv", "env") and len(values) == 2:
        env[f"OMPI_MCA_{values[0]}" if name.endswith("mca") else values[0]] = values[1]
    else:
        return name in ("genvall", "envall") or name in _PRINTS or (name, option.value) in _USUAL
    return True


def starts_ranks(command: Sequence[str]) -> bool:
    """Return whether the command starts an mpirun, also in a script of a shell."""
    script = script_of(command)
    if script is not None and not calls(command):  # a script that cannot be read
        return re.search(r"\bmpi(run|exec)\b", command[script]) is not None
    return any(start.kind == "mpirun" for start in starts(command))


def launch(framework: Framework, context: AttemptContext, role: str) -> Launch:
    """Return the launcher's command: an mpirun without hosts of its own, or the program of a horovodrun, before which
    allranks puts mpirun."""
    command = context.commands.get(role, ())
    if role != "launcher":
        unused = (0, "has no effect: workers run sshd, and mpirun starts the ranks")
        return Launch(command, warnings=(unused,) if role in context.own_command else ())
    if starts_ranks(command):
        return _without_hosts(framework, context, command)
    if role not in context.own_command:
        return replaced(framework, context, command)
    start = next(iter(starts(command)), None)
    if start is None and command and not _is_script(command):
        cure = "runs once, without mpirun: move it to spec.command, and allranks starts it for each rank"
        return Launch(command, warnings=((0, cure),))
    hostfile = start.option("hostfile") if start else None
    if start is None or start.kind != "horovodrun" or (hostfile and hostfile.value.startswith(FILES_DIR)):
        return Launch(command)
    problem = f"allranks starts the ranks by mpirun: remove this, and in spec {line_to_write(command, start)}"
    return Launch(command, problem=(start.head[0].argument, problem))


def _is_script(command: Sequence[str]) -> bool:
    """Return whether the command is a shell script, which may call mpirun."""
    return script_of(command) is not None or command[0].endswith(".sh") or basename(command[0]) in ("sh", "bash")


def _without_hosts(framework: Framework, context: AttemptContext, command: Sequence[str]) -> Launch:
    """Return the command without hosts of another system."""
    edits: dict[Word, str] = {}
    notes: list[Note] = []
    problem: Note | None = None
    for start in starts(command):
        names = [option for option in start.options if option.name in _HOSTS and not _own_hosts(command, option)]
        names += [option for option in start.options if _connects(option)]
        if start.kind != "mpirun" or not names:
            continue
        edits |= {word: "" for option in names for word in option.words}
        listed = ", ".join(map(str, names))
        place = names[0].words[0].argument
        does = "determines how mpirun reaches the hosts" if _connects(names[0]) else "writes the hostfile of mpirun"
        notes.append((place, f"allranks {does}, so this is not used: {listed}"))
        asked, ranks = request(start).ranks, _ranks(framework, context)
        if start.sure and asked and asked.isdigit() and ranks is not None and int(asked) > ranks:
            problem = problem or (
                place,
                f"mpirun starts {asked} ranks, and {_numbers(framework, context, asked, ranks)}",
            )
    return Launch(tuple(edited(command, edits)), tuple(notes), (), problem)


def _own_hosts(command: Sequence[str], option: Option) -> bool:
    """Return whether hosts may be those of this job: in a variable, in a file of allranks, or in one that a script
    writes or reads elsewhere."""
    script = script_of(command)
    is_file = option.name in _HOST_FILES
    written = is_file and script is not None and command[script].count(option.value) > 1
    return option.variable or written or (is_file and option.value.startswith(FILES_DIR))


def replaced(framework: Framework, context: AttemptContext, command: Sequence[str]) -> Launch:
    """Return the program of a command that begins with horovodrun or mpirun: allranks starts the same ranks itself."""
    edits: dict[Word, str] = {}
    notes: list[Note] = []
    warnings: list[Note] = []
    problem: Note | None = None
    for start in starts(command):
        if start.kind not in _SETS:
            continue
        place, asked = start.head[0].argument, request(start)
        if not start.sure:
            warnings.append((place, f"allranks starts the ranks: if {start.name} runs, it starts others"))
            continue
        line = line_to_write(command, start)
        if sentence := _mismatch(framework, context, start, asked):
            problem = problem or (place, f"{sentence}, and {line}")
        in_script = start.head[0].end is not None
        lost = [o for o in start.options if o in asked.unknown or (in_script and o.variable and asked.env)]
        if lost:
            sentence = f"allranks starts the ranks, and has no counterpart of {', '.join(map(str, lost))}"
            problem = problem or (place, f"{sentence}: {line}")
        variables = shlex.join(f"{name}={value}" for name, value in asked.env.items())
        edits |= start.edits(f"env {variables}" if variables else "")
        words = [*start.head, *(word for option in start.options for word in option.words)]
        listed = " ".join(word.text for word in words)
        notes.append((place, f"allranks starts the ranks, so this is not used: {listed}"))
    if edits or warnings:
        return Launch(tuple(edited(command, edits)), tuple(notes), tuple(warnings), problem)
    return framework.refuse_launchers(command, framework.copies(context))


def _mismatch(framework: Framework, context: AttemptContext, start: Start, asked: Request) -> str:
    """Return the difference between the ranks of a command and those of the job as a clause; empty without one."""
    ranks = _ranks(framework, context)
    if asked.least or asked.most:
        if context.elastic:
            workers = (context.elastic.min_workers, context.elastic.max_workers)
            least, most = (str(number * slots(context)) for number in workers)
            if ranks is None or (asked.least in (None, least) and asked.most in (None, most)):
                return ""
        bounds = " and ".join(f"{word} {n}" for word, n in (("at least", asked.least), ("at most", asked.most)) if n)
        return f"{start.name} starts {bounds} ranks: set elastic to these bounds, in workers"
    if asked.ranks is None or ranks is None or asked.ranks == str(ranks):
        return ""
    return f"{start.name} starts {asked.ranks} ranks, and {_numbers(framework, context, asked.ranks, ranks)}"


def _ranks(framework: Framework, context: AttemptContext) -> int | None:
    """Return the number of ranks of the job; None if its pool determines it."""
    if not context.gpus_determined and isinstance(context.options.slots_per_worker, str):
        return None
    return slots(context) * len(context.in_roles("worker"))


def _numbers(framework: Framework, context: AttemptContext, asked: str, ranks: int) -> str:
    """Return the number of ranks of the job, and what to set for those that a command asks for, as a clause."""
    per_worker, workers = slots(context), len(context.in_roles("worker"))
    option, number = f"{framework.name}.slotsPerWorker", int(asked) if asked.isdigit() else 0
    cure = f"roles.worker.replicas and {option}"
    if number and workers and number % workers == 0:
        cure = f"{option}: {number // workers}"
    elif number and number % per_worker == 0:
        cure = f"roles.worker.replicas: {number // per_worker}"
    return f"this job has {ranks} (workers x slotsPerWorker, {workers} x {per_worker}): set {cure}"
