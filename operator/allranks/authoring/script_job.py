"""Makes and loads the job for a program that has no manifest: `allranks run train.py --replicas 2`.

A program is a Python script, a notebook, a module or a command. The framework follows from the launcher of a command,
or from the packages that the program, and the modules beside it, import.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allranks.api.job import API_VERSION, KIND
from allranks.authoring.manifest_files import did_you_mean
from allranks.errors import CannotRun, InvalidManifest, InvalidOption
from allranks.frameworks import FRAMEWORKS
from allranks.frameworks.command_line import Word, basename, calls, starts
from allranks.frameworks.hints import ScriptHints

if TYPE_CHECKING:
    from allranks.authoring.manifests import Loaded

NOTEBOOK = ".ipynb"
MAX_MODULES = 100
"""Modules beside the script that are read at most, to find out what it imports."""
_NAME_LENGTH = 40


@dataclass(frozen=True, slots=True)
class Script:
    """Names and imports in the source of a script, and of the modules beside it that it imports."""

    path: str
    imports: Mapping[str, str]
    """Top-level package -> the file that imports it."""
    names: frozenset[str]
    """Names of functions, classes and attributes that the source uses."""
    words: tuple[str, ...] = ()
    """What starts it behind `python3` or a launcher, such as `-m pkg.train`; empty: its path."""
    command: tuple[str, ...] = ()
    """The whole command, if the user wrote it."""

    @property
    def name(self) -> str:
        """The name of the job."""
        return job_name(self.path.removesuffix(".__main__").rpartition(".")[2] if self.words else self.path)

    def guess_framework(self) -> tuple[str, str]:
        """Return (framework, what shows it). Frameworks that build on others come last in the registry."""
        for start in starts(self.command):
            for framework in FRAMEWORKS.values():
                if start.kind in framework.script.launchers:
                    return framework.name, f"{start.name} starts the program"
        for framework in reversed(FRAMEWORKS.values()):
            for package in self.imports:  # in their order, for the same message each time
                if package in framework.script.imports:
                    return framework.name, f"{self.imports[package]} imports {package}"
        package = self.path.partition(".")[0] if self.words else ""
        for framework in reversed(FRAMEWORKS.values()):
            if package in framework.script.imports:  # an installed one
                return framework.name, f"{self.path} is a module of {package}"
        default = next(framework for framework in FRAMEWORKS.values() if framework.script.any_program)
        read = self.imports or self.names
        return default.name, f"{self.path} imports no other" if read else f"the source of {self.path} is not here"


def is_script(file: str) -> bool:
    return file.endswith((".py", NOTEBOOK))


def read_script(path: str, workdir: Path) -> Script:
    """Read a script and the modules beside it that it imports. `path` is relative to `workdir`.

    Raise InvalidManifest if the script cannot be read or is not Python."""
    imports, names = _read(workdir / path, workdir)
    return Script(path, imports, names)


def read_module(module: str, workdir: Path) -> Script:
    """Read a module (`-m MODULE`). What is not below `workdir` or its folder `src` is not read.

    Raise InvalidManifest if the name or the file is not valid."""
    if not all(part.isidentifier() for part in module.split(".")):
        raise InvalidManifest([(f"-m {module}", "is not the name of a module, such as package.train")])
    script = Script(module, {}, frozenset(), words=("-m", module))
    for root in (workdir, workdir / "src"):
        base = root.joinpath(*module.split("."))
        for file in (base.with_suffix(".py"), base / "__main__.py"):
            if file.is_file():
                imports, names = _read(file, root)
                return replace(script, imports=imports, names=names)
    return script


def read_command(command: Sequence[str], workdir: Path) -> Script:
    """Read the Python program that a command starts: its script, its module, or the script of an entry point.

    Raise InvalidManifest if the file of the program is not valid."""
    launchers = starts(command)
    words = [word.text for word in launchers[-1].program] if launchers else [word.text for word in _last_call(command)]
    if launchers and launchers[-1].option("m", "module"):
        words.insert(0, "-m")
    elif words and _PYTHON.fullmatch(basename(words[0])):
        words = words[1:]
        while words and words[0] != "-m" and words[0].startswith("-"):
            words = words[2:] if words[0] in _WITH_VALUE else words[1:]
    program = words[0] if words else command[0]
    if program == "-m" and len(words) > 1:
        return replace(read_module(words[1], workdir), command=tuple(command))
    if program.endswith(".py") and (workdir / program).is_file():
        return replace(read_script(program, workdir), command=tuple(command))
    script = Script(basename(program), {}, frozenset(), command=tuple(command))
    entry_point = shutil.which(program)
    if entry_point and _is_python(Path(entry_point)):
        imports, names = _read(Path(entry_point), workdir)
        return replace(script, imports=imports, names=names)
    return script


_PYTHON = re.compile(r"python[0-9.]*")
_WITH_VALUE = frozenset({"-c", "-W", "-X"})
"""Options of Python with a value."""


def _is_python(file: Path) -> bool:
    """Return whether a program is a Python script. The first bytes of a large binary are enough."""
    with file.open("rb") as start:
        return re.match(rb"#!.*python", start.read(200)) is not None


def _last_call(command: Sequence[str]) -> tuple[Word, ...]:
    return next((call.words for call in reversed(calls(command)) if call.words), ())


def _read(first: Path, workdir: Path) -> tuple[dict[str, str], frozenset[str]]:
    """Return the imports (package -> the file that imports it) and the names in a file and the modules beside it."""
    imports: dict[str, str] = {}
    names: set[str] = set()
    waiting, done = [first], set[Path]()
    while waiting and len(done) < MAX_MODULES:
        file = waiting.pop()
        if file in done:
            continue
        done.add(file)
        for node in ast.walk(_cells(file) if file.suffix == NOTEBOOK else _parse(file, required=file == first)):
            if isinstance(node, ast.Name):
                names.add(node.id)
            elif isinstance(node, ast.Attribute):
                names.add(node.attr)
            for module in _imported(node):
                imports.setdefault(
                    module.partition(".")[0], str(file.relative_to(workdir) if file.is_relative_to(workdir) else file)
                )
                waiting += [*_beside(file.parent, module), *_beside(workdir, module)]
    return imports, frozenset(names)


def make_job(
    script: Script,
    *,
    framework: str | None = None,
    replicas: int = 1,
    gpus: int = 0,
    env: Sequence[tuple[str, str]] = (),
    arguments: Sequence[str] = (),
    image: str | None = None,
) -> tuple[dict[str, Any], list[str]]:
    """Return the manifest of the job, and notes on what was assumed. Raise InvalidManifest for wrong parameters."""
    framework, notes = choose_framework(script, framework)
    hints = FRAMEWORKS[framework].script
    if replicas > 1 and (script.imports or script.names) and hints.joins_group and not hints.joins_group & script.names:
        calls = ", ".join(sorted(hints.joins_group))
        uses = f"uses none of {calls}" if len(hints.joins_group) > 1 else f"does not use {calls}"
        notes.append(f"{script.path} {uses}: the {replicas} ranks may be independent copies that do not train together")
    name = script.name
    if not script.path.endswith(NOTEBOOK):
        command = script.command or (*hints.command, *(script.words or (script.path,)))
        return job_document(name, framework, command, replicas, gpus, env, arguments, image), notes
    executes, parameters = _notebook_command(script.path, name, hints), _notebook_parameters(script.path, arguments)
    document = job_document(name, framework, executes, replicas, gpus, env, parameters, image)
    output = {"name": "notebooks", "path": "/notebooks", "to": f"claim://{name}-notebooks", "when": "Always"}
    document["spec"] |= {"packages": ["papermill", "ipykernel"], "outputs": [output]}
    return document, notes


def _notebook_command(path: str, name: str, hints: ScriptHints) -> list[str]:
    """Return the command by which each rank executes the notebook, prints what its cells print, and keeps the result.

    The kernel is that of `python3`: the notebook may name one that only its author has.
    """
    papermill = "python3 -m papermill -k python3 -l python --no-progress-bar --stdout-file - --stderr-file -"
    executed = f'"$ALLRANKS_OUTPUT_NOTEBOOKS/{name}-{hints.rank}.ipynb"'
    return [*hints.launcher, "sh", "-c", f'exec {papermill} {shlex.quote(path)} {executed} "$@"', "sh"]


def _notebook_parameters(path: str, arguments: Sequence[str]) -> list[str]:
    """Return papermill's options for `--lr 0.1` or `--lr=0.1`. Raise InvalidManifest for other arguments."""
    words, out = iter(arguments), []
    for word in words:
        name, equals, value = word.removeprefix("--").partition("=")
        parameter = next(words, None) if not equals else value
        if not word.startswith("--") or not name.isidentifier() or parameter is None:
            raise InvalidManifest([(path, f"{word}: the parameters of a notebook are --NAME VALUE")])
        out += ["-p", name, parameter]
    return out


def choose_framework(script: Script, framework: str | None) -> tuple[str, list[str]]:
    """Return the framework, `framework` if it is given, and notes on what was assumed."""
    if framework is not None:
        return framework, []
    framework, because = script.guess_framework()
    return framework, [f"framework {framework}, because {because}"]


def job_document(
    name: str,
    framework: str,
    command: Sequence[str],
    replicas: int = 1,
    gpus: int = 0,
    env: Sequence[tuple[str, str]] = (),
    arguments: Sequence[str] = (),
    image: str | None = None,
) -> dict[str, Any]:
    """Return the manifest of a job whose pods are all workers with the same command. `gpus`: number in each pod."""
    spec: dict[str, Any] = {
        "framework": framework,
        "image": image or f"{name}:dev",
        "command": list(command),
        **({"args": list(arguments)} if arguments else {}),
        **({"env": [{"name": key, "value": value} for key, value in env]} if env else {}),
        "roles": {
            "worker": {"replicas": replicas},
            **{role: {"replicas": count} for role, count in FRAMEWORKS[framework].script.roles.items()},
        },
        **({"resources": {"limits": {"nvidia.com/gpu": gpus}}} if gpus else {}),
    }
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": spec}


def job_name(path: str) -> str:
    """Return a valid name of a job, from the name of the script: `Train_GPT.py` is train-gpt."""
    name = re.sub(r"[^a-z0-9]+", "-", Path(path).stem.lower()).strip("-")[:_NAME_LENGTH].strip("-")
    return name if name[:1].isalpha() else f"job-{name}".strip("-")


def _parse(file: Path, *, required: bool) -> ast.AST:
    try:
        return ast.parse(file.read_bytes(), str(file))
    except OSError as error:
        problem = f"cannot be read: {(error.strerror or str(error)).lower()}{did_you_mean(str(file))}"
    except (SyntaxError, ValueError) as error:
        line = f"line {error.lineno}: " if isinstance(error, SyntaxError) and error.lineno else ""
        problem = f"is not Python: {line}{error.msg if isinstance(error, SyntaxError) else error}"
    if required:
        raise InvalidManifest([(str(file), problem)])
    return ast.Module([], [])


def _cells(file: Path) -> ast.AST:
    """Return the code of a notebook, without the cells that are not Python. Raise InvalidManifest."""
    try:
        cells = [cell for cell in json.loads(file.read_bytes())["cells"] if cell["cell_type"] == "code"]
        texts = ["".join(cell["source"]) for cell in cells]
    except OSError as error:
        problem = f"cannot be read: {(error.strerror or str(error)).lower()}{did_you_mean(str(file))}"
        raise InvalidManifest([(str(file), problem)]) from error
    except (KeyError, TypeError, ValueError):
        raise InvalidManifest([(str(file), "is not a notebook of Jupyter, version 4 or newer")]) from None
    module = ast.Module([], [])
    for text in texts:
        lines = [line for line in text.splitlines() if not line.lstrip().startswith(("%", "!"))]
        with contextlib.suppress(SyntaxError, ValueError):
            module.body += ast.parse("\n".join(lines)).body
    return module


def _imported(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
        yield node.module
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _beside(folder: Path, module: str) -> Iterator[Path]:
    """Yield the files of a module in a folder."""
    base = folder.joinpath(*module.split("."))
    yield from (path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file())


# --- the job, loaded --------------------------------------------------------------------------------------------------

_FRAMEWORK_PATHS = ("framework", "spec.framework")


@dataclass(frozen=True, slots=True)
class Program:
    """What a user starts without a manifest: a script or a notebook, a module, or, without both, a command."""

    script: str = ""
    module: str = ""


def load_program(
    program: Program,
    sets: Sequence[str],
    *,
    arguments: Sequence[str],
    env: Sequence[tuple[str, str]],
    replicas: int,
    gpus: int,
    framework: str | None,
    workdir: Path,
    save: Path | None,
    ships: bool,
) -> tuple[Loaded, list[str]]:
    """Return the program's job and notes on it, and write its manifest to `save`.

    `ships`: the code in `workdir` is shipped. Raise InvalidManifest, CannotRun, or InvalidOption for a wrong framework.
    """
    # The loader imports all checks, which a program that uses the other functions of this file does not need.
    from allranks.authoring.manifests import load_documents

    framework = _framework_of_script(framework, sets)
    source, arguments = _read_program(program, arguments, workdir, ships)
    script = source.path
    document, notes = make_job(source, framework=framework, replicas=replicas, gpus=gpus, env=env, arguments=arguments)
    loaded = load_documents([(script, document)], sets, code=workdir if ships else None, local=True)
    if save:
        written, needed = loaded.documents[0], f"contains {script}"
        if ships:
            written = {**written, "spec": {**written["spec"], "code": os.path.relpath(workdir, save.parent)}}
            needed = "has the packages that it imports"
        _save(save, written)
        notes.append(f"the manifest is in {save}: set its image to one that {needed}, then submit it")
    return loaded, notes


def _read_program(
    program: Program, arguments: Sequence[str], workdir: Path, ships: bool
) -> tuple[Script, Sequence[str]]:
    """Return the program and its arguments. The words of a command are no arguments."""
    if program.script:
        return read_script(_inside(program.script, workdir) if ships else program.script, workdir), arguments
    if program.module:
        return read_module(program.module, workdir), arguments
    return read_command(arguments, workdir), ()


def _inside(script: str, code: Path) -> str:
    """Return the path of the script in the shipped code. `script` is relative to the current directory, or to `code`.

    Raise CannotRun if it is outside."""
    path = Path(script)
    if not path.is_file() and (code / script).is_file():
        return script
    if not path.resolve().is_relative_to(code.resolve()):
        raise CannotRun(f"{script} is not in {code}, the directory of --code: name a directory that contains it")
    return str(path.resolve().relative_to(code.resolve()))


def _framework_of_script(option: str | None, sets: Sequence[str]) -> str | None:
    """Return the framework of --framework, or of --set framework=NAME, which means the same: it also chooses the
    command."""
    values = [value for path, _, value in (item.partition("=") for item in sets) if path in _FRAMEWORK_PATHS]
    if not values:
        return option
    if values[-1] not in FRAMEWORKS:
        names = ", ".join(FRAMEWORKS)
        raise InvalidOption(f"--set framework={values[-1]}: there is no such framework; there are {names}.")
    if option not in (None, values[-1]):
        raise InvalidOption(f"--framework {option} and --set framework={values[-1]} differ: specify one of them.")
    return values[-1]


def _save(file: Path, document: dict[str, Any]) -> None:
    """Write a new file. Raise CannotRun if it exists or cannot be written."""
    from allranks.authoring.yaml_text import dump

    try:
        with file.open("x", encoding="utf-8") as out:
            out.write(dump([document]))
    except FileExistsError:
        raise CannotRun(f"--save {file}: the file exists; choose another name or remove it") from None
    except OSError as error:
        raise CannotRun(f"--save {file}: cannot be written: {(error.strerror or str(error)).lower()}") from error
