"""Writes a commented manifest for a script: what the source says is filled in, what it cannot say is explained."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from allranks.api.job import API_VERSION, KIND
from allranks.authoring.script_job import Script, choose_framework, job_name
from allranks.control_sequences import clean_text
from allranks.frameworks import FRAMEWORKS

CHECKPOINT_VARIABLE = "ALLRANKS_CHECKPOINT_DIR"
_MOST_OPTIONS = 40

_LIBRARIES = {
    "lightning": "Lightning reports its progress by itself. Trainer(devices=..., num_nodes=...) must match the ranks.",
    "pytorch_lightning": "Lightning reports its progress by itself. Trainer(devices=..., num_nodes=...) must match.",
    "transformers": "The Trainer of Hugging Face takes the ranks from torchrun, and reports its progress by itself.",
    "accelerate": "Accelerate takes the ranks from torchrun: `accelerate launch` is not needed.",
    "deepspeed": "DeepSpeed takes the ranks from torchrun: the `deepspeed` launcher is not needed.",
    "keras": "Keras reports its progress by itself.",
}
"""Package -> what a user of it has to know."""


@dataclass(frozen=True, slots=True)
class Option:
    """A command-line option that the script defines with argparse or click, or a positional argument of argparse that
    it requires."""

    name: str
    default: Any = None
    required: bool = False
    flag: bool = False
    help: str = ""

    @property
    def positional(self) -> bool:
        return not self.name.startswith("-")


@dataclass(frozen=True, slots=True)
class Starter:
    """A manifest as text, and notes on what was assumed."""

    text: str
    notes: tuple[str, ...]


def make_starter(
    script: Script,
    source: str,
    *,
    file: str,
    framework: str | None = None,
    replicas: int = 2,
    gpus: int = 0,
    image: str | None = None,
) -> Starter:
    """Return the manifest for a script. `source`: text of the script. `file`: future path of the manifest.

    Raise InvalidManifest if the framework is unclear."""
    framework, notes = choose_framework(script, framework)
    tree = ast.parse(source)
    options = list(_options(tree))
    name = job_name(script.path)
    lines = [
        *_head(script, file),
        f"apiVersion: {API_VERSION}",
        f"kind: {KIND}",
        "metadata:",
        f"  name: {name}",
        "spec:",
        f"  framework: {framework}",
        *(f"  # {_LIBRARIES[package]}" for package in _LIBRARIES if package in script.imports),
        f"  # An image that has {script.path} and its packages. `allranks run` does not use it.",
        f"  image: {_scalar(image or f'{name}:dev')}",
        f"  command: [{', '.join(_scalar(word) for word in (*FRAMEWORKS[framework].script.command, script.path))}]",
        *_args(options),
        *_roles(framework, replicas),
        *_resources(gpus),
        *_checkpoint(name, tree, options),
        *_RESTART,
    ]
    required = [option.name for option in options if option.required]
    if required:
        notes.append(f"replace CHANGE-ME: {script.path} requires {', '.join(required)}")
    return Starter("".join(f"{line}\n" for line in lines), tuple(notes))


def _head(script: Script, file: str) -> Iterator[str]:
    yield f"# A starting point for {_comment(script.path)}. Try it on this machine first: allranks run {file}"
    yield f"# Then set the image and submit it: allranks submit {file}"
    yield "# All fields: docs/reference/fields.md, or kubectl explain dt.spec --recursive"


def _args(options: Sequence[Option]) -> Iterator[str]:
    if not options:
        return
    yield "  # Options of the script, with their defaults:"
    shown = sorted(options, key=lambda option: (not option.required, option.positional))[:_MOST_OPTIONS]
    active = any(option.required for option in shown)
    yield "  args:" if active else "  # args:"
    for option in shown:
        about = ": ".join(part for part in (option.name if option.positional else "", option.help) if part)
        about = f"  # {about}" if about else ""
        yield f"  {'' if option.required else '# '}- {_scalar(_word(option))}{about}"


def _word(option: Option) -> str:
    if option.required:
        return "CHANGE-ME" if option.positional else f"{option.name}=CHANGE-ME"
    if option.flag:
        return option.name
    return f"{option.name}={'...' if option.default is None else option.default}"


def _roles(framework: str, replicas: int) -> Iterator[str]:
    yield "  roles:"
    yield "    worker:"
    yield f"      replicas: {replicas}  # pods"
    for role, count in FRAMEWORKS[framework].script.roles.items():
        yield f"    {role}:"
        yield f"      replicas: {count}"


def _resources(gpus: int) -> Iterator[str]:
    yield "  # Of each pod:"
    if gpus:
        yield "  resources:"
        yield f"    limits: {{nvidia.com/gpu: {gpus}}}"
    else:
        yield "  # resources:"
        yield "  #   limits: {nvidia.com/gpu: 1, memory: 32Gi}"


def _checkpoint(name: str, tree: ast.AST, options: Sequence[Option]) -> Iterator[str]:
    reads = any(isinstance(node, ast.Constant) and node.value == CHECKPOINT_VARIABLE for node in ast.walk(tree))
    places = [_argument_for(option) for option in options if _PLACE.fullmatch(option.name)]
    if reads:
        yield f"  # The script saves to {CHECKPOINT_VARIABLE}, and a restart continues from there. The claim is yours."
        yield "  checkpoint:"
        yield f"    claim: {name}-checkpoints"
        return
    yield "  # A volume that keeps checkpoints over restarts, mounted at /checkpoints in all pods. Let the script save"
    yield f"  # to the directory in the variable {CHECKPOINT_VARIABLE}, and resume from it."
    yield from (f"  # An argument for it: {place}" for place in places)
    yield "  # checkpoint:"
    yield f"  #   claim: {name}-checkpoints"


def _argument_for(option: Option) -> str:
    """Return the option with the directory of checkpoints, or with a file in it if its default is a file."""
    default = option.default if isinstance(option.default, str) else ""
    file = PurePosixPath(default).name if re.fullmatch(r"[\w./-]*\w\.[A-Za-z]\w*", default) else ""
    return f"{option.name}=$({CHECKPOINT_VARIABLE}){f'/{file}' if file else ''}"


_PLACE = re.compile(r"--(output|save|checkpoints?|ckpt|model)[-_]?(dir|directory|path|folder|file)?")


_RESTART = (
    "  restart:",
    "    maxRestarts: 3  # after failures of the program; those of the cluster do not count",
    "    # holdSeconds: 1800  # keep the pods of a failed job for a look: allranks exec JOB --rank 0",
    "  # Restart a job that makes no step for this long. It needs progress reports (docs/guides/reporting.md).",
    "  # hang: {timeoutSeconds: 600}",
)


# --- the options of the script ---------------------------------------------------------------------------------------


def _options(tree: ast.AST) -> Iterator[Option]:
    """Yield options of argparse (`add_argument`) and click (`option`) whose names are literals, and positional
    arguments of argparse without a default."""
    defined: set[str] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or _called(node) not in ("add_argument", "option"):
            continue
        words = [word for word in map(_literal, node.args) if isinstance(word, str)]
        keywords = {keyword.arg: _literal(keyword.value) for keyword in node.keywords if keyword.arg}
        if len(words) == 1 and _called(node) == "add_argument" and re.fullmatch(r"[A-Za-z]\w*", words[0]):
            if words[0] not in defined and keywords.get("nargs") not in ("?", "*") and "default" not in keywords:
                defined.add(words[0])
                yield Option(words[0], required=True, help=_comment(str(keywords.get("help") or "")))
            continue
        names = [word for word in words if word.startswith("--")]
        if not names or names[0] in defined or not re.fullmatch(r"--[A-Za-z0-9][\w-]*", names[0]):
            continue
        defined.add(names[0])
        default = keywords.get("default")
        yield Option(
            names[0],
            default if isinstance(default, str | int | float) and not isinstance(default, bool) else None,
            keywords.get("required") is True,
            str(keywords.get("action", "")).startswith("store_") or keywords.get("is_flag") is True,
            _comment(str(keywords.get("help") or "")),
        )


def _called(node: ast.Call) -> str:
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def _literal(node: ast.AST) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def _comment(text: str) -> str:
    """Return one line that is safe in a comment."""
    words = " ".join(clean_text(text, colour=False).split())
    return words if len(words) <= 80 else f"{words[:77]}..."


def _scalar(text: str) -> str:
    """Return a YAML string. A JSON string is one."""
    return text if _PLAIN.fullmatch(text) and text.lower() not in _WORDS else json.dumps(text)


_PLAIN = re.compile(r"[A-Za-z][\w./:-]*[\w/-]|--[\w-]+(=[\w./-]+)?")
_WORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off"})


def source_of(path: Path) -> str:
    """Return the text of a script that was read before, in the encoding that it declares."""
    import tokenize

    with tokenize.open(path) as text:
        return text.read()
