"""Liveness check of the operator's container: `python3 -m allranks.operator.health_check SOCKET`.

The kubelet runs it in the container (`exec`), because the ports for HTTP belong to another one: its failure must not
restart the operator. It succeeds if the event loop of the operator answers and reports no silent watch.
"""

from __future__ import annotations

import socket
import sys

from allranks.operator.ports import socket_protocol as protocol

SECONDS = 4.0


def check(path: str) -> str:
    """Return the problem; empty without one."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(SECONDS)
            connection.connect(path)
            connection.sendall(protocol.request_frame(protocol.Check(0, "healthz")))
            with connection.makefile("rb") as reader:
                size = int.from_bytes(reader.read(4), "big")
                reply = protocol.decode_reply(reader.read(min(size, protocol.REQUEST_BYTES)))
        return "the check failed; see the operator's log" if reply.failed else protocol.decode_result(reply, str)
    except (OSError, protocol.ProtocolError) as error:
        return f"the operator does not answer at {path}: {error}"


def main() -> None:
    wrong = check(sys.argv[1])
    print(wrong or "ok")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
