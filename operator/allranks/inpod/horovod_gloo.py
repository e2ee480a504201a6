"""Starts the Horovod ranks of a worker with gloo, without ssh: `python3 horovod_gloo.py PROGRAM [ARG...]`.

It does in each worker pod what `horovodrun` does over ssh. In the first worker it also serves the rendezvous, a
key-value store over HTTP (Horovod's own `RendezvousHTTPServer`, on a fixed port). Ranks start when all workers have
joined: Horovod itself waits 30 s for late workers, but an image pull takes longer.

Reads HOROVOD_CROSS_RANK HOROVOD_CROSS_SIZE HOROVOD_LOCAL_SIZE HOROVOD_GLOO_RENDEZVOUS_ADDR/PORT, and in the first
worker ALLRANKS_HOROVOD_HOSTS (`host:slots`, with `{}` for the number of each worker). Ends with the exit code of the
first failed rank, 128 + n for a signal. Needs only the standard library and Horovod's server.
"""

from __future__ import annotations

import http.client
import os
import signal
import socket
import sys
import time

from rank_processes import GRACE_SECONDS, run  # type: ignore[import-not-found]  # in the same directory
from rendezvous_secret import guarded, headers  # type: ignore[import-not-found]  # in the same directory

START_TIMEOUT_SECONDS = float(os.environ.get("HOROVOD_START_TIMEOUT", "600"))
"""Longest wait for the other workers. horovodrun uses the same variable."""
POLL_SECONDS = 0.1


def main(program: list[str]) -> int:
    """Run the ranks of this worker; return the exit status."""
    if not program:
        print("usage: horovod_gloo.py PROGRAM [ARG...]", file=sys.stderr)
        return 2
    worker, workers = int(os.environ["HOROVOD_CROSS_RANK"]), int(os.environ["HOROVOD_CROSS_SIZE"])
    host, port = os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"], int(os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"])
    signal.signal(signal.SIGTERM, _stop)
    if problem := host_name_problem():
        print(f"allranks: {problem}", file=sys.stderr)
        return 1
    if worker == 0:
        _serve(port, workers)
    try:
        # Pass an IP address: Horovod's HTTP client does not retry names that do not resolve yet.
        address = _meet(host, port, worker, workers)
    except TimeoutError as error:
        print(f"allranks: {error}", file=sys.stderr)
        return 1
    status = _run(program, address, worker)
    if worker == 0:
        _see_off(address, port, workers)
    return status


def host_name_problem() -> str:
    """Return why ranks would end with a segmentation fault in `hvd.init()`.

    Horovod's gloo looks the host's own name up, and does not handle an error. A pod has its name in /etc/hosts, unless
    it uses the network of its node.
    """
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError as error:
        return f"the host name {name} does not resolve ({error}), and Horovod needs it: add it to /etc/hosts"
    return ""


def _stop(number: int, frame: object) -> None:
    sys.exit(128 + number)


def _serve(port: int, workers: int) -> None:
    """Serve Horovod's rendezvous in a daemon thread."""
    import threading

    try:
        from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
        from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer
    except ImportError as error:
        sys.exit(f"allranks: the image's python3 has no Horovod ({error}): install it, or use another image")
    pattern = os.environ["ALLRANKS_HOROVOD_HOSTS"]
    hosts = parse_hosts(",".join(pattern.replace("{}", str(number)) for number in range(workers)))
    RendezvousHTTPServer.request_queue_size = 1024  # all ranks connect at the same moment
    server = RendezvousHTTPServer(("", port), guarded(RendezvousHandler), False)
    server.daemon_threads = True
    server.init(get_host_assignments(hosts, sum(host.slots for host in hosts)))
    threading.Thread(target=server.serve_forever, daemon=True).start()


def _meet(host: str, port: int, worker: int, workers: int) -> str:
    """Wait until all workers have joined; return the IP address of the rendezvous."""
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    registered = False
    missing = set(range(workers))
    while time.monotonic() < deadline:
        try:
            address = ipv4_address(host, port)
            if not registered:
                _request(address, port, "PUT", f"/allranks/{worker}", b"here")
                registered = True
            if worker == 0:
                missing -= {other for other in missing if _request(address, port, "GET", f"/allranks/{other}")}
                if not missing:
                    _request(address, port, "PUT", "/allranks/go", b"go")
            if _request(address, port, "GET", "/allranks/go"):
                _request(address, port, "PUT", f"/allranks/{worker}-went", b"yes")
                return address
        except (OSError, http.client.HTTPException):
            pass  # the name does not resolve yet, or the server does not listen yet
        time.sleep(POLL_SECONDS)
    who = f"workers {sorted(missing)[:10]} did not join" if worker == 0 else f"no rendezvous at {host}:{port}"
    raise TimeoutError(f"{who} within {START_TIMEOUT_SECONDS:.0f} s (HOROVOD_START_TIMEOUT)")


def ipv4_address(host: str, port: int) -> str:
    """Return the IPv4 address of a host. Raise OSError if its name does not resolve yet, and SystemExit if it has only
    IPv6 addresses: Horovod's gloo would wait for ever."""
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for family, _, _, _, address in addresses:
        if family == socket.AF_INET:
            return str(address[0])
    cure = "use controller: MPI, or pods with IPv4 addresses"
    sys.exit(f"allranks: {host} has only the IPv6 address {addresses[0][4][0]}, and Horovod's gloo needs IPv4: {cure}")


def _see_off(address: str, port: int, workers: int) -> None:
    """Wait until every worker has read that all have joined: the rendezvous ends with this process."""
    deadline = time.monotonic() + GRACE_SECONDS
    waiting = set(range(workers))
    while waiting and time.monotonic() < deadline:
        waiting -= {other for other in waiting if _request(address, port, "GET", f"/allranks/{other}-went")}
        if waiting:
            time.sleep(POLL_SECONDS)


def _request(address: str, port: int, method: str, path: str, body: bytes | None = None) -> bytes | None:
    """Return the body of the answer; None if the key does not exist."""
    connection = http.client.HTTPConnection(address, port, timeout=5)
    try:
        connection.request(method, path, body, headers())
        answer = connection.getresponse()
        content = answer.read()
        return content if answer.status == 200 else None
    finally:
        connection.close()


def _run(program: list[str], address: str, worker: int) -> int:
    slots = int(os.environ["HOROVOD_LOCAL_SIZE"])
    shared = dict(os.environ, HOROVOD_GLOO_RENDEZVOUS_ADDR=address)
    if address.startswith("127."):
        shared.setdefault("HOROVOD_GLOO_IFACE", "lo0" if sys.platform == "darwin" else "lo")
    numbers = {worker * slots + local: local for local in range(slots)}
    return run(  # type: ignore[no-any-return]
        program,
        {
            rank: shared | {"HOROVOD_RANK": str(rank), "HOROVOD_LOCAL_RANK": str(local)}
            for rank, local in numbers.items()
        },
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
