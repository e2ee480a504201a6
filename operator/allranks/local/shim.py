"""The process above one container's processes: what a PID namespace does in a cluster, it does on this machine.

When the container's first process ends, everything that descends from it is killed, whatever sessions it moved to; when
`allranks run` disappears, even by SIGKILL, so does the container. Standard library only, and little of it, for each
container starts one (`python -I -S`), with the container's output as its own.

Its standard input is a socket to the driver. From the driver come the number of bytes of a start request, on a line,
the request (see `encode`), then single bytes: `T` for SIGTERM to the first process, `K` for SIGKILL to everything. To
the driver go lines: `started TIME`, then `exited STATUS TIME` with a wait status, or `failed ERRNO TIME`.
"""

# pathlib and contextlib take longer to import than all the rest here.
# ruff: noqa: PTH112, PTH118, PTH208, SIM105

from __future__ import annotations

import os
import select
import signal
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LINUX = sys.platform == "linux"
LEFTOVER_SECONDS = 10.0
"""How long to wait for killed processes that the kernel does not let go of (uninterruptible I/O)."""
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def main() -> None:
    link = os.dup(0)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    request = read_request(link)
    if request is None:
        return
    become_subreaper()
    wakeup, wakeup_end = os.pipe()
    os.set_blocking(wakeup, False)
    os.set_blocking(wakeup_end, False)
    signal.set_wakeup_fd(wakeup_end, warn_on_full_buffer=False)
    for number in (*FORWARDED, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    first = start(*request, link)
    if first is not None:
        supervise(first, link, wakeup)


def supervise(first: int, link: int, wakeup: int) -> None:
    """Until the first process has ended and nothing that descends from it is left."""
    poll = select.poll()
    poll.register(link, select.POLLIN)
    poll.register(wakeup, select.POLLIN)
    status: int | None = None
    ended = give_up = 0.0
    remembered: list[int] = []
    interval: int | None = None
    while True:
        for fd, _ in poll.poll(interval):
            if fd == wakeup:
                for number in os.read(wakeup, 4096):
                    if number in FORWARDED and status is None:
                        send(first, number)
                continue
            orders = receive(link)
            if not orders:
                poll.unregister(link)
            if not orders or b"K" in orders:
                give_up = give_up or time.monotonic() + LEFTOVER_SECONDS
            elif b"T" in orders and status is None:
                remembered = [] if LINUX else descendants(os.getpid())
                send(first, signal.SIGTERM)
        while (reaped := reap()) is not None and reaped[0]:
            if reaped[0] == first:
                status, ended = reaped[1], time.time()
                give_up = give_up or time.monotonic() + LEFTOVER_SECONDS
                kill_group(first)
                for pid in remembered:
                    send(pid, signal.SIGKILL)
        if give_up and (reaped is None or time.monotonic() > give_up):
            report(link, f"exited {int(signal.SIGKILL) if status is None else status} {ended or time.time()!r}")
            return
        if give_up:
            # Again and again: a process that was just forked is not in the list yet.
            for descendant in descendants(os.getpid()):
                send(descendant, signal.SIGKILL)
            interval = 5 if interval is None else min(interval * 2, 200)


def reap() -> tuple[int, int] | None:
    """(pid, wait status) of a child that ended, pid 0 where all still run; None where there is no child."""
    try:
        return os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None


def start(directory: bytes, files: int, argv: list[bytes], env: dict[bytes, bytes], link: int) -> int | None:
    """Forks the first process. Its pid, or None where its program cannot be executed, which the driver is told."""
    errors, errors_end = os.pipe()
    shim = os.getpid()
    began = time.time()
    pid = os.fork()
    if pid == 0:
        try:
            prepare_child(shim, files)
            os.chdir(directory)
            execute(argv, env)
        except OSError as error:
            os.write(errors_end, str(error.errno).encode())
        finally:
            os._exit(127)
    os.close(errors_end)
    errno = os.read(errors, 64)  # empty once exec has closed the other end
    os.close(errors)
    if errno:
        os.waitpid(pid, 0)
        report(link, f"failed {errno.decode()} {time.time()!r}")
        return None
    report(link, f"started {began!r}")
    return pid


def prepare_child(shim: int, files: int) -> None:
    os.setsid()
    for number in (*FORWARDED, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
        if number in (signal.SIGPIPE, signal.SIGXFSZ) or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    if LINUX:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # the shim itself may be killed
        if os.getppid() != shim:
            os._exit(127)
        try:
            # As in a cluster: when memory runs out, the ranks go before whatever watches them.
            with open("/proc/self/oom_score_adj", "wb") as adjust:
                adjust.write(b"500")
        except OSError:
            pass
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files if hard == resource.RLIM_INFINITY else min(files, hard), hard))


def execute(argv: list[bytes], env: dict[bytes, bytes]) -> None:
    """As execvp, with the PATH of `env`. Raises OSError: the first reason that is more than "not found"."""
    name = argv[0]
    folders = [b""] if b"/" in name else env.get(b"PATH", os.defpath.encode()).split(b":")
    reason: OSError | None = None
    for folder in folders:
        try:
            os.execve(os.path.join(folder, name), argv, env)
        except (FileNotFoundError, NotADirectoryError) as error:
            reason = reason or error
        except OSError as error:
            reason = error
    raise reason or FileNotFoundError(2, name)


def descendants(root: int) -> list[int]:
    """Every process below `root`, those without children first."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents():
        children.setdefault(parent, []).append(pid)
    found = [root]
    for pid in found:
        found += children.get(pid, ())
    return found[:0:-1]


def parents() -> list[tuple[int, int]]:
    """(pid, pid of its parent) of every process."""
    if not os.path.isdir("/proc/self"):
        with os.popen("ps -A -o pid= -o ppid=") as listing:
            return [(int(pid), int(parent)) for pid, parent in map(str.split, listing)]
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    stat = file.read()
            except OSError:
                continue
            # The command name before it may hold spaces and parentheses.
            found.append((int(name), int(stat[stat.rindex(b")") + 2 :].split()[1])))
    return found


def become_subreaper() -> None:
    """Processes whose parent ended become children of this one. Elsewhere than on Linux they are lost from sight."""
    if LINUX:
        prctl(PR_SET_CHILD_SUBREAPER, 1)


def prctl(option: int, value: int) -> None:
    import ctypes

    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        pass


def kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except OSError:
        pass


def encode(directory: str, files: int, argv: list[str], env: dict[str, str]) -> bytes:
    """The start request: working directory, soft limit of open files, arguments, environment."""
    pairs = [f"{name}={value}" for name, value in env.items()]
    body = b"\0".join(os.fsencode(text) for text in (directory, str(files), str(len(argv)), *argv, *pairs))
    return b"%d\n" % len(body) + body


def read_request(link: int) -> tuple[bytes, int, list[bytes], dict[bytes, bytes]] | None:
    """What `encode` made of it; None where the driver is gone."""
    size = b""
    while not size.endswith(b"\n"):
        digit = receive(link, 1)
        if not digit:
            return None
        size += digit
    body = b""
    while len(body) < int(size):
        part = receive(link, int(size) - len(body))
        if not part:
            return None
        body += part
    directory, files, count, *rest = body.split(b"\0")
    argv, pairs = rest[: int(count)], rest[int(count) :]
    return directory, int(files), argv, dict(pair.split(b"=", 1) for pair in pairs)


def receive(link: int, count: int = 4096) -> bytes:
    """Empty where the driver is gone."""
    try:
        return os.read(link, count)
    except OSError:
        return b""


def report(link: int, line: str) -> None:
    try:
        os.write(link, line.encode() + b"\n")
    except OSError:
        pass


if __name__ == "__main__":
    main()
    os._exit(0)
