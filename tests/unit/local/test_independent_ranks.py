"""After a run it is said that its ranks were independent copies, but only when that is certain: real processes."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tqdm

from allranks.core.facts.model import Pod
from allranks.frameworks import FRAMEWORKS
from allranks.local.independent_ranks import SETTING, IndependentRanks
from allranks.pod_bundle import copy_startup

POD = Pod(name="job-worker-0-0", uid="u", role="worker", index=0, attempt=0)


@pytest.fixture(scope="module")
def startup(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("startup")
    copy_startup(folder)
    return folder


class Ranks:
    """Two pods whose programs run one after the other."""

    def __init__(self, framework: str, folder: Path, startup: Path) -> None:
        self.observed = IndependentRanks(FRAMEWORKS[framework], folder / "peers")
        self._startup = startup

    def run(self, index: int, text: str, command: tuple[str, ...] = (), **env: Any) -> None:
        argv = command or (sys.executable, "-c", text)
        container = {"command": ["python3", *argv[1:]], "env": [{"name": k, "value": v} for k, v in env.items()]}
        pod = replace(POD, name=f"job-worker-{index}-0", index=index)
        added = self.observed.variables(pod, container)
        wiring = {"RANK": str(index), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "TF_CONFIG": "{}"}
        variables = {"PYTHONPATH": str(self._startup), **wiring, **env, **added}
        subprocess.run(argv, env=variables, check=True, timeout=300)

    @property
    def copies(self) -> int:
        self.observed.collect()
        return self.observed.count(0)


@pytest.mark.parametrize(
    ("text", "framework", "copies"),
    [
        ("print('trained')", "pytorch", 2),
        ("import os; os.environ['HOME'] = 'a'; assert os.environ['HOME'] == 'a'", "pytorch", 2),
        ("import os; assert os.environ['RANK'] in '01'", "pytorch", 0),
        ("import os; os.getenv('WORLD_SIZE')", "pytorch", 0),
        ("import os; os.environb.get(b'MASTER_ADDR')", "pytorch", 0),
        ("import os; dict(os.environ)", "pytorch", 0),
        ("import os; os.environ['TF_CONFIG']", "pytorch", 2),
        ("import os; os.environ['TF_CONFIG']", "tensorflow", 0),
        ("import os; 'JAX_PROCESS_ID' in os.environ", "jax", 0),
        ("print('C reads the variables of Horovod')", "horovod", 0),
    ],
)
def test_copies_are_those_of_programs_that_read_no_variable_of_their_peers(text, framework, copies, tmp_path, startup):
    ranks = Ranks(framework, tmp_path, startup)
    for index in range(2):
        ranks.run(index, text)
    assert ranks.copies == copies
    assert not (tmp_path / "peers").exists()


def test_a_process_below_a_rank_may_find_the_peers(tmp_path, startup):
    ranks = Ranks("pytorch", tmp_path, startup)
    child = "import os; os.environ['RANK']"
    for index in range(2):
        ranks.run(index, f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}], check=True)")
    assert ranks.copies == 0


def test_tqdm_goes_through_all_variables_and_is_no_sign_of_a_group(tmp_path, startup):
    ranks = Ranks("pytorch", tmp_path, startup)
    for index in range(2):
        ranks.run(index, f"import sys; sys.path.append({str(Path(tqdm.__file__).parents[1])!r}); import tqdm")
    assert ranks.copies == 2


def test_all_processes_of_a_pod_count(tmp_path, startup):
    ranks = Ranks("pytorch", tmp_path, startup)
    ranks.run(0, "pass", LOCAL_WORLD_SIZE="4")
    assert ranks.copies == 4


def test_one_rank_is_no_copy(tmp_path, startup):
    ranks = Ranks("pytorch", tmp_path, startup)
    ranks.run(0, "pass")
    assert ranks.copies == 0


def test_a_program_without_the_start_up_code_is_not_certain(tmp_path, startup):
    ranks = Ranks("pytorch", tmp_path, startup)
    ranks.run(0, "pass")
    ranks.run(1, "", command=(sys.executable, "-I", "-c", "pass"))
    assert ranks.copies == 0


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"command": ["python3", "a.py"]}, {"command": ["python3", "b.py"]}),
        ({"command": ["python3", "a.py"], "env": [{"name": "PART", "value": "0"}]}, {"command": ["python3", "a.py"]}),
    ],
)
def test_programs_that_differ_are_no_copies(one, other, tmp_path):
    observed = IndependentRanks(FRAMEWORKS["pytorch"], tmp_path)
    for index, container in enumerate((one, other)):
        name = f"job-worker-{index}-0"
        observed.variables(replace(POD, name=name), container)
        (tmp_path / f"{name}.ran").write_text("1")
    observed.collect()
    assert observed.count(0) == 0


@pytest.mark.parametrize(
    ("command", "is_observed"),
    [
        (["python3", "train.py"], True),
        (["/opt/venv/bin/python3.12", "-m", "train"], True),
        (["torchrun", "train.py"], True),
        (["./train.py"], True),
        (["python3", "/allranks/watch.py", "--", "python3", "train.py"], True),
        (["python3", "/allranks/watch.py", "--", "./train"], False),
        (["python3", "train.py", "--rank", "$(RANK)"], False),
        (["sh", "-c", "python3 train.py --rank $RANK"], False),
        ([], False),
    ],
)
def test_only_programs_that_python_starts_are_observed(command, is_observed, tmp_path):
    observed = IndependentRanks(FRAMEWORKS["pytorch"], tmp_path)
    assert (SETTING in observed.variables(POD, {"command": command})) is is_observed


def test_a_variable_with_a_field_of_the_pod_tells_the_ranks_apart(tmp_path, startup):
    observed = IndependentRanks(FRAMEWORKS["pytorch"], tmp_path)
    source = {"fieldRef": {"fieldPath": "metadata.name"}}
    container = {"command": ["python3", "train.py"], "env": [{"name": "POD", "valueFrom": source}]}
    assert "POD" in observed.variables(POD, container)[SETTING].rpartition(":")[2].split(",")
