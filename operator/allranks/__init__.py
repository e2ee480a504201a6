"""allranks: distributed training jobs on Kubernetes and on one machine."""

from __future__ import annotations

from typing import Any

from allranks.version import __version__

__all__ = ["__version__"]

_LAZY = {
    "history": "allranks.sdk.history",
    "run": "allranks.sdk.run",
    "submit": "allranks.sdk.submit",
    **dict.fromkeys(("Job", "job", "jobs"), "allranks.sdk.job"),
    "LogLine": "allranks.sdk.logs",
    **dict.fromkeys(
        (
            *("AllranksError", "CannotPickle", "CannotRun", "CannotShip", "ClusterError", "InvalidManifest"),
            *("JobDeleted", "RankFailed", "ResultError", "WaitTimeout"),
        ),
        "allranks.errors",
    ),
}
"""Name -> its module, imported at its first use: the report library in a pod has no other part of allranks. Their types
are in `__init__.pyi`."""


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "report":  # a program that imports only allranks
        return import_module("allranks.report")
    if name not in _LAZY:
        raise AttributeError(f"module 'allranks' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
