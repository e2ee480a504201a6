"""The documentation says what is true: its manifests are valid, its commands exist, its links lead somewhere."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
import yaml

from allranks.api.sweep_validation import parse_sweep
from allranks.api.validation import parse, parse_pool
from allranks.cli.main import COMMANDS, HIDDEN, LazyGroup
from allranks.core.facts import pool_template
from allranks.core.objects import pods

ROOT = next(folder for folder in Path(__file__).parents if (folder / "pyproject.toml").is_file())
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("train/*.md")])
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)]*))?\)")


def blocks(page: Path, *languages: str) -> list[str]:
    return [text for language, text in BLOCK.findall(page.read_text()) if language in languages]


def manifests() -> list[tuple[str, dict]]:
    found = []
    for page in PAGES:
        for text in blocks(page, "yaml"):
            found += [(page.name, doc) for doc in yaml.safe_load_all(text) if isinstance(doc, dict) and "kind" in doc]
    return found


def commands() -> list[tuple[str, list[str]]]:
    """`allranks ...` in shell blocks, and in lines of a console block that begin with `$`."""
    found = []
    for page in PAGES:
        lines = [line for text in blocks(page, "sh", "bash", "shell") for line in whole_lines(text)]
        lines += [line[2:] for text in blocks(page, "console") for line in whole_lines(text) if line.startswith("$ ")]
        for line in lines:
            words = shlex.split(line, comments=True)
            if "allranks" in words:
                found.append((page.name, words[words.index("allranks") + 1 :]))
    return found


def whole_lines(text: str) -> list[str]:
    """Return the lines, those that end with a backslash together with the next one."""
    return text.replace("\\\n", " ").splitlines()


def test_every_complete_manifest_in_the_documentation_is_valid() -> None:
    jobs = [(page, doc) for page, doc in manifests() if doc["kind"] == "DistributedTraining"]
    assert jobs
    for _, document in jobs:
        assert pods.problems(parse(document)) == []


def test_every_part_of_a_manifest_in_the_documentation_is_valid() -> None:
    """A block that begins with `spec:` shows some fields of a job."""
    base = {"framework": "pytorch", "image": "me/train:1", "command": ["x"], "roles": {"worker": {"replicas": 2}}}
    found = []
    for page in PAGES:
        for text in blocks(page, "yaml"):
            documents = [doc for doc in yaml.safe_load_all(text) if isinstance(doc, dict) and set(doc) == {"spec"}]
            found += [(page.name, {**base, **doc["spec"]}) for doc in documents]
    assert found
    job = {"apiVersion": "allranks.dev/v1alpha1", "kind": "DistributedTraining", "metadata": {"name": "part"}}
    for _, spec in found:
        if isinstance(spec.get("code"), str):  # a directory, which only clients understand
            del spec["code"]
        parse({**job, "spec": spec})


def test_every_Python_block_in_the_documentation_compiles() -> None:
    found = [(page.name, text) for page in PAGES for text in blocks(page, "python")]
    assert found
    for page, text in found:
        compile(text, page, "exec")


def test_the_Lightning_example_says_how_many_pods_there_are() -> None:
    """Lightning forms no group without num_nodes: each pod trains alone."""
    shown = [text for page in PAGES for text in blocks(page, "python") if "Trainer(" in text and "lightning" in text]
    assert shown
    assert all("num_nodes=" in text for text in shown)


def test_every_pool_in_the_documentation_is_valid() -> None:
    found = [doc for _, doc in manifests() if doc["kind"] == "TrainingPool"]
    assert found
    for document in found:
        assert pool_template.problems(parse_pool(document).spec) == []


def test_every_sweep_in_the_documentation_is_valid() -> None:
    found = [doc for _, doc in manifests() if doc["kind"] == "TrainingSweep"]
    assert found
    for document in found:
        parse_sweep(document)


def test_every_allranks_command_in_the_documentation_exists_with_its_options() -> None:
    assert commands()
    group = LazyGroup()
    for page, words in commands():
        if not words or words[0].startswith("-"):
            continue
        assert words[0] in {*COMMANDS, *HIDDEN}, f"{page}: allranks {words[0]}"
        command = group.get_command(None, words[0])
        while isinstance(command, click.Group) and words[1:2] and words[1] in command.commands:
            command, words = command.commands[words[1]], words[1:]
        for end in ("--", "|"):  # arguments of the program follow, or another program
            words = words[: words.index(end)] if end in words else words
        related = [group.get_command(None, "submit" if "--cluster" in words else "run")] if words[0] == "dev" else []
        parameters = [parameter for each in (command, *related) for parameter in each.params]
        accepted = {option for parameter in parameters for option in parameter.opts + parameter.secondary_opts}
        used = {word.split("=")[0] for word in words[1:] if re.match(r"--?[a-z]", word)}
        assert used <= accepted | {"-h", "--help"}, f"{page}: {words}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_examples_of_the_documentation_exist(page: Path) -> None:
    text = page.read_text()
    for link, anchor in LINK.findall(text):
        if "://" in link:
            continue
        target = page.parent / link if link else page
        assert target.exists(), f"{page.name}: {link}"
        assert not anchor or anchor in anchors(target), f"{page.name}: {link}#{anchor}"
    for name in re.findall(r"examples/[\w-]+\.yaml", text):
        assert (ROOT / name).exists(), f"{page.name}: {name}"


def anchors(page: Path) -> set[str]:
    """As MkDocs and GitHub name the headings of a page."""
    headings = re.findall(r"^#+ (.*)", BLOCK.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


def test_every_page_is_in_the_navigation() -> None:
    def pages(entry: object) -> list[str]:
        if isinstance(entry, str):
            return [entry]
        return [page for child in (entry.values() if isinstance(entry, dict) else entry) for page in pages(child)]

    listed = pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    assert sorted(listed) == sorted(str(page.relative_to(ROOT / "docs")) for page in ROOT.glob("docs/**/*.md"))


@pytest.mark.parametrize("script", ["tour.py", "progress.py", "recovery.py"])
def test_what_makes_a_page_from_real_runs_can_be_started(script):
    """The runs take minutes, and tests do not make them."""
    command = [sys.executable, ROOT / "tools" / script, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "usage" in done.stdout
