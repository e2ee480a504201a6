"""Starts a JAX program so that `jax.distributed.initialize()` needs no arguments: `python3 jax_process.py -- PROGRAM`.

JAX reads the coordinator's address from the environment, but not the number of processes and the own process ID. It
asks `ClusterEnv` classes for these. `startup/jax_cluster.py` adds one in every Python that the program starts. Needs
only the standard library.
"""

from __future__ import annotations

import os
import sys

from watch import DIRECTORY, become, prepend  # type: ignore[import-not-found]  # in the same directory


def main(argv: list[str]) -> int:
    """Replace this process by the program. Return only if it cannot be started."""
    if len(argv) < 2 or argv[0] != "--":
        print("usage: jax_process.py -- PROGRAM [ARG...]", file=sys.stderr)
        return 2
    env = dict(os.environ)
    prepend(env, DIRECTORY / "startup")
    return become(argv[1:], env)  # type: ignore[no-any-return]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
