"""Horovod's rendezvous for N ranks on this machine, until it is killed: `rendezvous.py N` prints its port."""

from __future__ import annotations

import signal
import sys

from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
from horovod.runner.http.http_server import RendezvousServer

size = int(sys.argv[1])
server = RendezvousServer()
port = server.start()
server.init(get_host_assignments(parse_hosts(f"localhost:{size}"), size, size))
print(f"port {port}", flush=True)
signal.pause()
