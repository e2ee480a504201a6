"""The parent process of one container. It does on one machine what a PID namespace does in a cluster.

When the container's first process ends, the shim kills all of its descendants, whatever sessions they moved to. When
`allranks run` ends, even by SIGKILL, so does the container. Each container starts a shim (`python -I -S`), so the shim
imports little, and the standard library only. The container's output is the output of the shim.

Standard input is a socket to the runner. The runner sends the size of a start request on a line, the request (see
`encode`), then single bytes: `T` for SIGTERM to the first process, `K` for SIGKILL to all processes. The shim answers
with lines: `started TIME`, then `exited STATUS TIME` with a wait status, or `failed ERRNO TIME`.
"""

# Importing pathlib and contextlib takes longer than all other imports here.
# ruff: noqa: PTH100, PTH118, PTH120, SIM105

from __future__ import annotations

import os
import select
import signal
import sys
import time

if __name__ == "__main__":  # alone, in a Python without packages
    sys.path.append(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "inpod"))
    import process_tree  # type: ignore[import-not-found]
else:
    from allranks.inpod import process_tree

PR_SET_PDEATHSIG = 1
LINUX = sys.platform == "linux"
LEFTOVER_SECONDS = 10.0
"""Longest wait for killed processes in uninterruptible I/O."""
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def main() -> None:
    link = os.dup(0)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    request = read_request(link)
    if request is None:
        return
    if LINUX:
        process_tree.adopt_orphans()
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
    """Wait until the first process and all of its descendants have ended."""
    poll = select.poll()
    poll.register(link, select.POLLIN)
    poll.register(wakeup, select.POLLIN)
    status: int | None = None
    ended = give_up = 0.0
    remembered: set[int] = set()
    interval: int | None = None
    while True:
        for fd, _ in poll.poll(interval):
            if fd == wakeup:
                for number in os.read(wakeup, 4096):
                    if number in FORWARDED and status is None:
                        process_tree.send(first, number)
                continue
            orders = receive(link)
            if not orders:
                poll.unregister(link)
            if not orders or b"K" in orders:
                give_up = give_up or time.monotonic() + LEFTOVER_SECONDS
            elif b"T" in orders and status is None:
                remembered = set() if LINUX else process_tree.descendants()
                process_tree.send(first, signal.SIGTERM)
        while (reaped := reap()) is not None and reaped[0]:
            if reaped[0] == first:
                status, ended = reaped[1], time.time()
                give_up = give_up or time.monotonic() + LEFTOVER_SECONDS
                kill_group(first)
                for pid in remembered:
                    process_tree.send(pid, signal.SIGKILL)
        if give_up and (reaped is None or time.monotonic() > give_up):
            report(link, f"exited {int(signal.SIGKILL) if status is None else status} {ended or time.time()!r}")
            return
        if give_up:
            # Repeated: a process that was just forked may not be in the list yet.
            process_tree.kill_descendants()
            interval = 5 if interval is None else min(interval * 2, 200)


def reap() -> tuple[int, int] | None:
    """Return (pid, wait status) of a child that ended; pid 0 if all still run; None if there is no child."""
    try:
        return os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None


def start(directory: bytes, files: int, argv: list[bytes], env: dict[bytes, bytes], link: int) -> int | None:
    """Fork the first process. Return its pid, or None after reporting that its program cannot be executed."""
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
        process_tree.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # for the case that the shim is killed
        if os.getppid() != shim:
            os._exit(127)
        try:
            # As in a cluster: when memory runs out, the kernel kills ranks before the process that supervises them.
            with open("/proc/self/oom_score_adj", "wb") as adjust:
                adjust.write(b"500")
        except OSError:
            pass
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files if hard == resource.RLIM_INFINITY else min(files, hard), hard))


def execute(argv: list[bytes], env: dict[bytes, bytes]) -> None:
    """Execute a program as execvp does, with the PATH of `env`. Raise OSError, preferably one other than "not
    found"."""
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


def kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except OSError:
        pass


def encode(directory: str, files: int, argv: list[str], env: dict[str, str]) -> bytes:
    """Return the start request: working directory, soft limit of open files, arguments, environment."""
    pairs = [f"{name}={value}" for name, value in env.items()]
    body = b"\0".join(os.fsencode(text) for text in (directory, str(files), str(len(argv)), *argv, *pairs))
    return b"%d\n" % len(body) + body


def read_request(link: int) -> tuple[bytes, int, list[bytes], dict[bytes, bytes]] | None:
    """Decode what `encode` returned. Return None if the runner has ended."""
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
    """Return an empty text if the runner has ended."""
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
