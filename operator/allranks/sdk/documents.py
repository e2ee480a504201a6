"""Makes the manifest of a function or a script, for this machine and for clusters."""

from __future__ import annotations

import ast
import inspect
import os
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from allranks.authoring.script_job import Script, choose_framework, job_document, job_name, make_job, read_script
from allranks.core.facts import naming
from allranks.frameworks import FRAMEWORKS
from allranks.frameworks.base import HELPER_DIR
from allranks.inpod.call_function import UNUSABLE
from allranks.sdk import outcome
from allranks.sdk.outcome import Outputs
from allranks.sdk.payload import name_of

FUNCTION_ANNOTATION = naming.FUNCTION_ANNOTATION
"""Name of the function whose value the job has. A job without it runs a script, whose value is None."""
RESULTS_ANNOTATION = "allranks.dev/results"
"""`every-rank` if all ranks send their values."""
EVERY_RANK = "every-rank"

Target = Callable[..., Any] | str | os.PathLike[str]
Ranks = int | tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Options:
    """The parameters of a call besides the function or script."""

    replicas: Ranks
    gpus: int = 0
    framework: str | None = None
    name: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    restarts: int | None = None
    image: str | None = None
    pool: str | None = None
    queue: str | None = None
    checkpoint: str | None = None
    outputs: Outputs = field(default_factory=dict)
    packages: Sequence[str] = ()
    every_rank: bool = False

    @property
    def most(self) -> int:
        """Return the replicas; of an elastic job, the largest number."""
        return self.replicas if isinstance(self.replicas, int) else self.replicas[1]


def of_function(function: Callable[..., Any], command: Sequence[str], options: Options) -> dict[str, Any]:
    """Return the manifest. `command` starts the program that calls the function. Raises InvalidManifest, ValueError."""
    framework = framework_of(function, options)
    name = options.name or job_name(name_of(function))
    document = job_document(
        name, framework, command, options.most, options.gpus, tuple(options.env.items()), (), options.image
    )
    document["spec"]["progress"] = {}  # the function can report its progress
    return _with(document, options)


def framework_of(function: Callable[..., Any], options: Options) -> str:
    """Return the caller's choice, or the framework of the packages that the function imports.

    Raises InvalidManifest, ValueError.
    """
    _check_framework(options)
    return choose_framework(_read_function(function), options.framework)[0]


def of_script(script: str, args: Sequence[Any], options: Options) -> tuple[dict[str, Any], list[str]]:
    """Return the manifest, and notes on what was assumed. Raises InvalidManifest, ValueError."""
    _check_framework(options)
    document, notes = make_job(
        read_script(script, Path.cwd()),
        framework=options.framework,
        replicas=options.most,
        gpus=options.gpus,
        env=tuple(options.env.items()),
        arguments=[str(argument) for argument in args],
        image=options.image,
    )
    if options.name is not None:
        document["metadata"]["name"] = options.name
    return _with(document, options), notes


def function_on_cluster(function: Callable[..., Any], payload: str, options: Options) -> dict[str, Any]:
    """Return the manifest. `payload`: path of the pickled function in the pods."""
    every_rank = ["--every-rank"] if options.every_rank else []
    program = [
        f"{HELPER_DIR}/call_function.py",
        payload,
        "--report",
        *outcome.arguments(options.outputs),
        *every_rank,
    ]
    start = FRAMEWORKS[framework_of(function, options)].script.command
    document = of_function(function, [*start, *program], options)
    annotations = {FUNCTION_ANNOTATION: name_of(function)}
    if options.every_rank:
        annotations[RESULTS_ANNOTATION] = EVERY_RANK
    document["metadata"]["annotations"] = annotations
    # Another attempt with the same image fails in the same way.
    document["spec"].setdefault("restart", {})["rules"] = [{"exitCodes": [UNUSABLE], "action": "Fail"}]
    return document


def with_generated_name(document: dict[str, Any], options: Options) -> dict[str, Any]:
    """Let the API server add a suffix unless the caller named the job: the same function runs many times."""
    if options.name is None:
        document["metadata"]["generateName"] = f"{document['metadata'].pop('name')}-"
    return document


def _check_framework(options: Options) -> None:
    if options.framework is not None and options.framework not in FRAMEWORKS:
        raise ValueError(f"framework={options.framework!r}: must be one of {', '.join(FRAMEWORKS)}")


def _with(document: dict[str, Any], options: Options) -> dict[str, Any]:
    spec = document["spec"]
    if options.restarts is not None:
        spec["restart"] = {"maxRestarts": options.restarts}
    if not isinstance(options.replicas, int):
        low, high = options.replicas
        spec["elastic"] = {"minReplicas": low, "maxReplicas": high}
    if options.pool:
        spec["pool"] = options.pool
    if options.queue:
        spec["scheduling"] = {"queue": options.queue}
    if options.checkpoint:
        spec["checkpoint"] = {"claim": options.checkpoint}
    if options.outputs:
        spec["outputs"] = outcome.outputs(options.outputs)
    return document


def _read_function(function: Callable[..., Any]) -> Script:
    """Return the packages that the function, and the modules and objects that it uses, import."""
    name = name_of(function)
    imports: dict[str, str] = {}
    names: set[str] = set()
    plain = inspect.unwrap(function)
    for node in ast.walk(_parsed(plain)):
        if isinstance(node, ast.Import):
            imports |= {alias.name.partition(".")[0]: name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            imports[node.module.partition(".")[0]] = name
        elif isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
    for used, value in getattr(plain, "__globals__", {}).items():
        if used in names:
            module = value.__name__ if inspect.ismodule(value) else getattr(value, "__module__", None)
            if isinstance(module, str):
                imports.setdefault(module.partition(".")[0], name)
    return Script(name, imports, frozenset(names))


def _parsed(function: Callable[..., Any]) -> ast.AST:
    """Return an empty module if the source is not available, for example of a builtin."""
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return ast.Module([], [])
