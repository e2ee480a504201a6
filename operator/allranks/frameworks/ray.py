"""Ray: a head, which runs the command, and groups of workers, which are nodes of the head's Ray cluster."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, ClassVar

from pydantic import Field

from allranks.fields import Model, Port, Rule
from allranks.frameworks.base import (
    HELPER_DIR,
    SECRET_DIR,
    AttemptContext,
    Framework,
    Replica,
    RoleKind,
    Shared,
    Wire,
    Wiring,
)
from allranks.frameworks.command_line import Launch, edited, starts
from allranks.frameworks.hints import DoctorProbe, LogReader, RootCause, ScriptHints
from allranks.frameworks.rank_report import read_rank_report
from allranks.text import flow_list


class RayOptions(Model):
    """Options of Ray."""

    port: Port = Field(6379, description="Port of the GCS, Ray's control service, in the head's pod.")
    dashboard_port: Port = Field(8265, description="Port of Ray's dashboard in the head's pod.")
    client_port: Port = Field(10001, description="Port for Ray clients (`ray://`) in the head's pod.")
    head_runs_tasks: bool = Field(
        False,
        description="Whether Ray runs tasks in the head's pod too. In a job without workers it always does.",
    )
    idle_seconds: Annotated[int, Field(ge=1, le=315_360_000)] | None = Field(
        None,
        description="For a job without a command, which is a Ray cluster for drivers from elsewhere: it succeeds when "
        "no driver and no actor has used it for this long.",
    )


_PROGRAM_LINES = "allranks: the last lines of the program itself:\n"
"""Written by inpod/ray_output.py, if Ray printed lines of other processes after them, or one of these died."""
_TASK_ERROR = re.compile(
    r"^(?:ray\.exceptions\.)?(?=RayTaskError\(\w+\): |(?:Ray)?Actor(?:Died)?Error: |WorkerCrashedError: )", re.MULTILINE
)
"""The exception of a task or actor: Ray adds the remote traceback to it, with process and address of the node."""
_OF_DRIVER = re.compile(r"^\[Rank (?P<rank>\d+)(?:,\d+)* Error Snippet\]:\n", re.MULTILINE)
"""Ray Train's own report, at the end of the log of a pod that began with a helper of an earlier version."""
_COLOR = re.compile(r"\x1b\[[0-9;]*m")


class RayLog(LogReader):
    def root_cause(self, message: str) -> RootCause | None:
        """Find the failure of a rank, a task or the program itself that ended the program."""
        if rank := read_rank_report(message):
            return rank
        message = _COLOR.sub("", message)  # Ray colors the name of the task, whether or not it writes to a terminal
        if ranks := [*_OF_DRIVER.finditer(message)]:
            return RootCause(rank=int(ranks[-1]["rank"]), message=message[ranks[-1].end() :].strip() or None)
        _, repeated, output = message.rpartition(_PROGRAM_LINES)
        if errors := [*_TASK_ERROR.finditer(output)]:
            return RootCause(message=output[errors[-1].end() :].strip())
        return RootCause(message=output.strip() or None) if repeated else None


class Ray(Framework):
    name = "ray"
    description = "Ray"
    options = RayOptions
    roles: ClassVar[Mapping[str, RoleKind]] = {
        "head": RoleKind("The head of the Ray cluster, which runs the command.", max_replicas=1, ranked=False),
        "worker": RoleKind("Nodes of the Ray cluster, which run tasks and actors.", scope="Pod"),
    }
    any_role = True
    script = ScriptHints(
        imports=frozenset({"ray"}), joins_group=frozenset({"init", "remote", "fit"}), roles={"head": 1}
    )
    log = RayLog()
    probe = DoctorProbe("ray")
    reserved_env = frozenset({"RAY_ADDRESS"})
    launcher_env = ("RAY_JOB_CONFIG_JSON_ENV_VAR", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE")
    elastic = "absorbs"
    rules = (
        Rule(
            rule="has(self.roles.head) && self.roles.head.replicas > 0",
            message="ray needs a head: add it, or change framework",
            field=".roles.head",
        ),
        Rule(
            rule="!has(self.success) || self.success in ['head', 'All', 'all']",
            message="cannot be workers in a Ray job, whose workers never exit by themselves: remove it",
            field=".success",
        ),
        Rule(
            rule="!has(self.ray) || !has(self.ray.idleSeconds) || !(has(self.command) || "
            "(has(self.roles.head) && has(self.roles.head.command)))",
            message="is for a Ray cluster without a command, which ends when its command does: remove one of them",
            field=".ray.idleSeconds",
        ),
    )

    def __init__(self, kinds: Mapping[str, RoleKind] | None = None) -> None:
        if kinds is not None:
            self.roles = kinds  # type: ignore[misc]

    def for_job(self, options: Any, roles: Sequence[str]) -> Framework:
        return _for_job(tuple(roles))

    def missing_command(self) -> str:
        return ", or ray.idleSeconds for a Ray cluster without a program"

    def wire(self, context: AttemptContext) -> Wire:
        options: RayOptions = context.options
        [head] = context.in_roles("head")
        host, port = context.address(head, options.port)
        ports = {"gcs": options.port, "dashboard": options.dashboard_port, "client": options.client_port}
        workers = len(context.replicas) - 1
        head_works = options.head_runs_tasks or not (workers or context.elastic)
        defaults = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": f"{SECRET_DIR}/secret",
            "RAY_USAGE_STATS_ENABLED": "0",  # Ray would send statistics to its authors
        }
        # When a worker is deleted, Ray drains its node within this time.
        drain = {"RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": str(max(0, context.grace_seconds - _KILL_SECONDS))}
        head_env = {
            "ALLRANKS_RAY_DASHBOARD_PORT": str(context.address(head, options.dashboard_port)[1]),
            "ALLRANKS_RAY_CLIENT_PORT": str(context.address(head, options.client_port)[1]),
            "ALLRANKS_RAY_WORKERS": str(workers),
        }
        if context.elastic:
            others = workers - len(context.in_roles("worker"))
            head_env["ALLRANKS_RAY_MIN_WORKERS"] = str(others + context.elastic.min_workers)
            head_env["ALLRANKS_RAY_MAX_WORKERS"] = str(others + context.elastic.max_workers)
            head_env["ALLRANKS_RAY_WAIT_SECONDS"] = str(context.elastic.wait_seconds)
        has_program = bool(context.commands.get("head")) or options.idle_seconds is None
        if not has_program:
            head_env["ALLRANKS_RAY_IDLE_SECONDS"] = str(options.idle_seconds)
            # For `ray job submit` in this pod.
            head_env["RAY_API_SERVER_ADDRESS"] = f"http://127.0.0.1:{head_env['ALLRANKS_RAY_DASHBOARD_PORT']}"

        first: dict[str, int] = {}
        for place, replica in enumerate(context.replicas):
            first.setdefault(replica.role, place)

        def wiring(replica: Replica) -> Wiring:
            is_head = replica == head
            works = head_works or not is_head
            env = {
                "RAY_ADDRESS": f"{host}:{port}",
                "RAY_NODE_TYPE_NAME": replica.role,  # Ray's label ray.io/node-group, by which tasks choose nodes
                **({"ALLRANKS_RAY_NODE": str(first[replica.role] + replica.index)} if context.local else {}),
                **_resources(context, replica.role),
                **({} if works else {"ALLRANKS_RAY_CPUS": "0", "ALLRANKS_RAY_GPUS": "0"}),
                **(head_env if is_head else {}),
            }
            start = ("python3", f"{HELPER_DIR}/ray_node.py", "head" if is_head else "worker")
            return Wiring(
                env=env,
                defaults=defaults if is_head else defaults | drain,
                ports=ports if is_head else {},
                prefix=(*start, "--") if is_head and has_program else (),
                command=None if is_head and has_program else start,
                helper=True,
                secret=True,
            )

        return wiring

    def launch(self, context: AttemptContext, role: str) -> Launch:
        command = context.commands.get(role, ())
        start = next((start for start in starts(command) if start.kind == "ray"), None)
        if role != "head" or start is None:
            return Launch(command)
        edits = dict.fromkeys(start.call.words, "")
        if start.call.separator:
            edits[start.call.separator] = ""
        driver = edited(command, edits) if start.head[0].end is not None else []
        line = "write the command of the program that uses Ray"
        if driver and driver[-1].strip():
            line += f", for example command: {flow_list(driver)}"
        else:
            line += ", or set ray.idleSeconds instead of a command, for a cluster to which drivers connect"
        return Launch(command, problem=(start.head[0].argument, f"allranks starts Ray in each pod: {line}"))

    def shared(self, context: AttemptContext) -> Shared:
        return Shared(secret=True)

    def processes(self, context: AttemptContext, role: str) -> int:
        return 0  # Ray places the processes while the job runs, and the program numbers them

    def success_target(self, replicas: Mapping[str, int], elastic: bool = False) -> tuple[str, int | None]:
        return ("head", 0)

    def long_running_roles(self, replicas: Mapping[str, int]) -> frozenset[str]:
        return frozenset(replicas) - {"head"}


@lru_cache(maxsize=64)
def _for_job(roles: tuple[str, ...]) -> Ray:
    """Return the framework of a job with these roles: all but the head are workers."""
    kinds = {role: RoleKind("Nodes of the Ray cluster.", scope="Pod") for role in roles}
    return Ray({"head": Ray.roles["head"], **{role: kind for role, kind in kinds.items() if role != "head"}})


_KILL_SECONDS = 5
"""Part of a pod's grace period in which its processes end."""


def _resources(context: AttemptContext, role: str) -> dict[str, str]:
    """Return variables with the resources that Ray may use in a pod of this role. Ray finds out the others itself."""
    out = {"ALLRANKS_RAY_GPUS": str(context.gpus[role])}
    if role in context.cpus:
        out["ALLRANKS_RAY_CPUS"] = str(context.cpus[role])
    if role in context.memory:
        out["ALLRANKS_RAY_MEMORY"] = str(context.memory[role])
    return out
