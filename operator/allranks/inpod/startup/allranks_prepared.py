"""Imports what a program will import, then waits until the program may begin. `sitecustomize.py` calls `wait`.

The supervisor of a pod starts the next attempt's program in advance (ALLRANKS_PREPARE=DESCRIPTOR:PLAN). It stays before
its first line: everything else of the interpreter, such as its flags, arguments and streams, is as usual. Below a
torchrun, its workers are prepared as well, as children of the process that becomes torchrun. What might differ from a
program that imports by itself is a reason not to use the process; the socket then has a sentence for the log.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import socket
import sys

import allranks_loaded_modules  # type: ignore[import-not-found]  # in the same directory

TYPE_CHECKING = False  # see allranks_import_hooks
if TYPE_CHECKING:
    from typing import Any

VARIABLE = "ALLRANKS_PREPARE"
LATE = re.compile(
    r"(ALLRANKS|PET|TORCHELASTIC|ACCELERATE|FSDP|NCCL|TORCH_NCCL|WANDB|MLFLOW|HF|TRANSFORMERS|JAX_COORDINATOR)_"
    r"|MASTER_ADDR$|MASTER_PORT$|(LOCAL_|GROUP_|ROLE_|NODE_)?(RANK|WORLD_SIZE)$|TF_CONFIG$|COORDINATOR_|GLOO_"
    r"|JAX_NUM_PROCESSES$|JAX_PROCESS_ID$|TOKENIZERS_PARALLELISM$|CUDA_VISIBLE_DEVICES$"
)
"""Variables that only Python code reads, which is noticed, or that libraries read when they are used."""
_PATCHES = "replaces functions of other modules"
UNSUITED = {
    "gevent": _PATCHES,
    "eventlet": _PATCHES,
    "unsloth": _PATCHES,
    "tensorflow": "starts threads when it is imported",
}
"""Packages whose programs import by themselves, and why."""
HARMLESS = ("/tqdm/utils.py",)
"""They read all variables, but use only those with their prefix."""
WORKER_SECONDS = 300.0
"""Longest time for the imports of one worker."""
_LAUNCHER = "torch.distributed.launcher.api"
_HANDLER = "torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler"


class NotPrepared(Exception):
    """Why the next program starts without prepared imports."""


def wait() -> None:
    """Return when the program begins. The process ends if its parent does, and never runs the program by itself."""
    descriptor, _, path = os.environ.pop(VARIABLE).partition(":")
    try:
        channel = socket.socket(fileno=int(descriptor))
        channel.set_inheritable(False)
        content, workers = ready(path)
        channel.sendall(json.dumps(content).encode() + b"\n")
        order = receive(channel)
        channel.close()
    except BaseException:
        os._exit(1)
    if order is None or "problem" in content:
        os._exit(0)
    for name, value in order["env"].items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    if order["session"]:
        os.setsid()
    importlib.invalidate_caches()
    if workers:
        hand_out(workers)


def ready(path: str) -> tuple[dict[str, Any], list[Prepared]]:
    """Import, and start workers that import. Return what to tell the parent, and the workers."""
    workers: list[Prepared] = []
    try:
        with open(path) as file:
            plan = json.load(file)
        os.unlink(path)  # noqa: PTH108 (it may have secrets)
        reads = prepare(plan)
        for number, worker in enumerate(plan.get("workers", ())):
            workers.append(Prepared(worker["arguments"], worker["env"], worker["plan"], f"{path}.{number}"))
            workers[-1].read(WORKER_SECONDS)
            if workers[-1].problem or not workers[-1].private:
                raise NotPrepared(workers[-1].problem or "the imports of a worker take too long")
        check(len(workers))
        private = private_bytes() + sum(worker.private for worker in workers)
        return {"reads": sorted(reads), "private": private}, workers
    except NotPrepared as reason:
        return {"problem": str(reason)}, workers
    except BaseException as error:
        return {"problem": f"{type(error).__name__}: {error}"}, workers


def receive(channel: socket.socket) -> dict[str, Any] | None:
    """Return the next line of the other side; None if that has ended. Raise BlockingIOError or TimeoutError before the
    first byte."""
    data = b""
    while not data.endswith(b"\n"):
        try:
            part = channel.recv(65536)
        except ConnectionError:
            part = b""
        if not part:
            return None
        data += part
        channel.settimeout(None)  # the rest follows at once
    return dict(json.loads(data))


class Prepared:
    """A process that imports and then waits, as its parent sees it: the supervisor of a pod, or torchrun for its
    workers. The constructor raises OSError."""

    def __init__(
        self, arguments: list[str], env: dict[str, str], plan: dict[str, Any], path: str, **pipes: Any
    ) -> None:
        import subprocess

        self.arguments, self.env = arguments, dict(env)
        self.private = 0
        self.problem: str | None = None
        """Why it cannot be used."""
        self._reads: set[str] | None = None
        self._channel, theirs = socket.socketpair()
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(plan, file)
        with theirs:
            ours = {**env, VARIABLE: f"{theirs.fileno()}:{path}"}
            self.process = subprocess.Popen(arguments, env=ours, pass_fds=[theirs.fileno()], **pipes)

    def read(self, seconds: float = 0.0) -> None:
        """Read whether it is ready; wait for that for some time."""
        if self._reads is not None or self.problem is not None:
            return
        self._channel.settimeout(seconds)
        try:
            content = receive(self._channel)
        except OSError:  # not yet
            return
        if content is None:
            content = {"problem": "the process that imported in advance has ended"}
        self.problem = content.get("problem")
        self._reads, self.private = set(content.get("reads", ())), content.get("private", 0)

    def begin(self, arguments: list[str], env: dict[str, str], session: bool = False) -> bool:
        """Let it become this program. Return False if it cannot."""
        names = [name for name in self.env.keys() | env.keys() if self.env.get(name) != env.get(name)]
        if self._reads is None or self.problem is not None or arguments != self.arguments:
            return False
        early = sorted(name for name in names if name in self._reads or not LATE.match(name))
        if early:
            self.problem = f"{early[0]} changes, which the imports may read"
            return False
        order = {"env": {name: env.get(name) for name in names}, "session": session}
        try:
            self._channel.settimeout(1.0)
            self._channel.sendall(json.dumps(order).encode() + b"\n")
        except OSError:
            return False
        self._channel.close()
        return True

    def close(self) -> None:
        """Let it end; it may still import."""
        self._channel.close()


# --- imports ---------------------------------------------------------------------------------------------------------


def prepare(plan: dict[str, Any]) -> set[str]:
    """Import what a rank had imported, and compare. Return the variables that were read. Raise NotPrepared."""
    loaded, before, path = set(sys.modules), dict(os.environ), list(sys.path)
    record = plan["record"]
    for name, reason in UNSUITED.items():
        if name in record["modules"]:
            raise NotPrepared(f"{name} {reason}")
    hooks = sys.modules.get("allranks_import_hooks")
    if hooks is not None:
        hooks.defer()
    kind, reads = type(os.environ), set()

    class Noted(kind):  # type: ignore[misc, valid-type]
        def __getitem__(self, key: str) -> str:
            if isinstance(key, str) and not any(f"{file}\n" in caller_files() for file in HARMLESS):
                reads.add(key)
            return str(super().__getitem__(key))

    sys.path[:] = record["path"] or path
    os.environ.__class__ = Noted
    try:
        if plan.get("workers"):
            import_one(_LAUNCHER)
        for name, file in record["modules"].items():
            if name not in sys.modules and installed(file):
                import_one(name)
    finally:
        os.environ.__class__ = kind
        sys.path[:] = path
    if not plan.get("workers"):
        compare(record, loaded, before, reads)
    return reads


def caller_files() -> str:
    """Return the files of the functions that read a variable: of Mapping, and of its caller."""
    frame, files = sys._getframe(2), []
    for _ in range(3):
        if frame is None:
            break
        files.append(frame.f_code.co_filename)
        frame = frame.f_back  # type: ignore[assignment]
    return "\n".join([*files, ""])


def import_one(name: str) -> None:
    try:
        importlib.import_module(name)
    except Exception as error:
        raise NotPrepared(f"{name} cannot be imported in advance: {type(error).__name__}: {error}") from error


def installed(file: str) -> bool:
    """Return whether a module belongs to Python or to an installed package, so that it is not the program's own."""
    return "/site-packages/" in file or "/dist-packages/" in file or of_python(file)


def of_python(file: str) -> bool:
    return os.path.dirname(file).startswith(os.path.dirname(os.__file__)) and "-packages/" not in file  # noqa: PTH120


def compare(record: dict[str, Any], loaded: set[str], before: dict[str, str], reads: set[str]) -> None:
    """Raise NotPrepared if the imports may have had another result than in the program."""
    for name, file in allranks_loaded_modules.files().items():
        if name in loaded or of_python(file) or file.startswith(os.path.dirname(__file__)):  # noqa: PTH120
            continue
        if not installed(file):
            raise NotPrepared(f"an installed package imports {name}, a file of the program")
        if record["modules"].get(name) != file:
            raise NotPrepared(f"the program does not import {name}")
    changed = allranks_loaded_modules.changed_variables(before)
    for name in changed.keys() | record["changed"].keys():
        same = changed.get(name) == record["changed"].get(name)
        if not same and (name in changed or name in reads or not LATE.match(name)):
            raise NotPrepared(f"the program sets {name}, which its imports may read")


def check(workers: int) -> None:
    """Raise NotPrepared if the imports have begun something that a waiting process must not hold."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        raise NotPrepared("the imports initialize CUDA")
    targets = {number: target_of(number) for number in map(int, os.listdir("/proc/self/fd"))}  # noqa: PTH208
    for target in targets.values():
        if target.startswith(("/dev/nvidia", "/dev/kfd", "/dev/dri", "/dev/neuron", "/dev/accel")):
            raise NotPrepared(f"the imports open {target}")
    sockets = sum(target.startswith("socket:") for number, target in targets.items() if number > 2)
    if sockets > 1 + workers:
        raise NotPrepared("the imports open network connections")


def target_of(descriptor: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115
    except OSError:
        return ""


def private_bytes() -> int:
    """Return the memory that only this process uses."""
    with open("/proc/self/smaps_rollup") as file:
        return 1024 * sum(int(line.split()[1]) for line in file if line.startswith("Private_"))


# --- workers of torchrun ---------------------------------------------------------------------------------------------


def hand_out(workers: list[Prepared]) -> None:
    """Let torchrun take prepared workers where it would start processes."""
    handler = sys.modules.get(_HANDLER)
    start = getattr(handler, "Popen", None)
    if handler is None or start is None:
        return

    def take(*positional: Any, **options: Any) -> Any:
        usual = {"args", "env", "stdout", "stderr", "start_new_session"}
        env = options.get("env") or {}
        as_usual = bool(positional or options.keys() - usual or options.get("stdout") or options.get("stderr"))
        for worker in [worker for worker in workers if worker.env.get("LOCAL_RANK") == env.get("LOCAL_RANK")]:
            workers.remove(worker)
            arguments, session = list(options.get("args", ())), bool(options.get("start_new_session"))
            if not as_usual and worker.begin(arguments, env, session):
                return worker.process
            worker.close()
            worker.process.kill()
        return start(*positional, **options)

    handler.Popen = take  # type: ignore[attr-defined]
