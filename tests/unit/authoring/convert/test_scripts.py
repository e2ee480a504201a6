"""Scripts of shells in converted jobs: they stay valid, and the number of processes is the one that they start."""

from __future__ import annotations

import random
import subprocess
from typing import Any

import pytest
import yaml

from support.builders import table

from .inputs import comments, draft, pods, pytorch
from .rendered import Rendered

GPUS = {"limits": {"nvidia.com/gpu": 8}}


def converted(script: str, **spec: Any) -> Any:
    env = spec.pop("env", None)
    return draft(pytorch(pods(command=["bash", "-c"], args=[script], resources=GPUS, env=env), **spec))


def script_of(made: Any) -> str:
    text: str = made.spec["args"][0]
    return text


# Sentence, script, nprocPerNode, number of processes in a pod; None if the manifest does not determine it.
@table(
    ("an option", "torchrun --nproc_per_node=4 a.py", None, 4),
    ("an option behind a variable", 'A="--nnodes 2"\ntorchrun $A --nproc_per_node 4 a.py', None, 4),
    ("a text", 'A="--nproc_per_node 4 --nnodes $WORLD_SIZE"\ntorchrun $A a.py', None, 4),
    ("an array", 'A=(--nproc-per-node=4 # four\n --nnodes 2)\ntorchrun "${A[@]}" a.py', None, 4),
    ("a text that is appended", 'A="--nnodes 2"\nA+=" --nproc_per_node 4"\ntorchrun ${A} a.py', None, 4),
    ("a variable in a variable", 'N=4\nA="--nproc_per_node $N"\ntorchrun $A a.py', None, 4),
    ("a default", "torchrun --nproc_per_node=${GPUS:-4} a.py", None, 4),
    ("an exported variable", "export N=4; torchrun --nproc_per_node $N a.py", None, 4),
    ("the operator's variable", "torchrun --nproc_per_node=$PET_NPROC_PER_NODE a.py", "4", 4),
    ("a wrapper", "timeout 60 nsys profile torchrun --nproc_per_node=4 a.py", None, 4),
    ("a here-document before it", "cat > c <<'E'\nit's {\nE\ntorchrun --nproc_per_node=4 a.py", None, 4),
    ("the command in a variable", 'L="torchrun --nproc_per_node 4"\n$L a.py', None, 4),
    ("the number of GPUs", "torchrun --nproc_per_node=$(nvidia-smi -L | wc -l) a.py", None, "Auto"),
    ("the number of GPUs in a variable", "N=$(nvidia-smi -L | wc -l)\ntorchrun --nproc_per_node $N a.py", None, "Auto"),
    ("arithmetic", "torchrun --nproc_per_node=$((G / 2)) a.py", None, None),
    ("a variable of the image", "torchrun --nproc_per_node=$G a.py", None, None),
    ("options in a variable of the image", "torchrun $ARGS a.py", None, None),
    ("a variable that depends on a condition", "if x; then N=4; fi\ntorchrun --nproc_per_node=$N a.py", None, None),
    ("two numbers", "torchrun --nproc_per_node=1 a.py\ntorchrun --nproc_per_node=2 b.py", None, None),
    ("a script that cannot be read", "torchrun --nproc_per_node=4 a.py 'open", None, None),
)
def test_the_number_of_processes_is_the_one_that_the_script_starts_or_is_reported(case):
    script, of_job, number = case
    made = converted(script, **({"nprocPerNode": of_job} if of_job else {}))
    assert made.get("pytorch.processesPerNode") == (None if number == "Auto" else number)
    assert bool(made.remarks) == (number is None)
    assert number is not None or "Set pytorch.processesPerNode" in comments(made)


@table(
    ("a list of options in a variable", 'A="--nproc_per_node 8 --nnodes 2"\ntorchrun $A a.py', None),
    ("options behind the program", "torchrun a.py --nnodes 3 --rdzv_id 1", None),
    ("options of another program", "shard.py --nnodes 2 --standalone\ntorchrun a.py", None),
    ("a longer option", "torchrun a.py --node-rank-file /x", None),
    ("a semicolon", "torchrun --master_port=6000 a.py; sync", "torchrun a.py; sync"),
    ("a substitution", 'torchrun --rdzv_endpoint=$(hostname -i | cut -d" " -f1):1 a.py', "torchrun a.py"),
    ("lines", "torchrun \\\n  --nnodes=2 \\\n  --nproc_per_node=8 \\\n  a.py", "torchrun \\\n  a.py"),
)
def test_only_options_between_torchrun_and_its_program_are_removed(case):
    script, expected = case
    assert script_of(converted(script)) == (expected or script)


def test_the_number_of_a_variable_in_the_manifest_is_the_number_of_processes():
    env = [{"name": "N", "value": "4"}]
    made = draft(pytorch(pods(command=["torchrun", "--nproc_per_node=$(N)", "a.py"], resources=GPUS, env=env)))
    assert made.get("pytorch.processesPerNode") == 4
    env = [{"name": "PET_NPROC_PER_NODE", "value": "2"}]
    assert draft(pytorch(pods(command=["torchrun", "a.py"], env=env))).get("pytorch.processesPerNode") == 2


def test_a_script_that_reads_the_rank_of_its_pod_still_gets_it():
    made = converted('[ "$RANK" = 0 ] && prepare; A="--nnodes $WORLD_SIZE"; torchrun $A a.py')
    job = Rendered(yaml.safe_dump(made.document))
    probe = script_of(made).partition(";")[0] + "; echo $RANK $WORLD_SIZE"
    for index in range(2):
        env = {"PATH": "/usr/bin:/bin", **job.env("worker", index)}
        assert "RANK" not in env
        done = subprocess.run(["bash", "-c", probe], env=env, capture_output=True, text=True, check=True)
        assert done.stdout == f"{index} 2\n"


def test_an_argument_with_the_rank_of_the_pod_still_has_it():
    made = draft(pytorch(pods(command=["torchrun", "a.py", "--host=$(RANK)/$(WORLD_SIZE)"], resources=GPUS)))
    assert made.spec["command"] == ["torchrun", "a.py", "--host=$(NODE_RANK)/$(NNODES)"]


# --- generated scripts ------------------------------------------------------------------------------------------------

VALUES = ["8", "$N", '"$N"', "${N:-4}", "$((G / 2))", "$(nvidia-smi -L | wc -l)", '"$(a "b c")"', "`x | y`", "'a b'"]
OPTIONS = ["--nproc_per_node", "--nnodes", "--node-rank", "--master_addr", "--rdzv_id", "--rdzv_endpoint", "--tee"]
BEFORE = [
    "set -ex",
    "cd /app && pip install -q 'x>=1' || true",
    "cat > f <<'EOF'\nit's $(not closed\nEOF",
    'A="--nnodes 2 --nproc_per_node 8"',
    "B=(--a \"b c\" 'd' # comment's\n --e)",
    "for h in a b; do echo $h; done",
    "if [ -f x ]; then . ./x; fi",
    'f() { echo "$1" | tee >(cat); }',
    "case $X in a) y;; *) z;; esac",
    "echo $'it\\'s' \"$(date +'%s')\" # a comment's end",
]
AFTER = ["", "; sync", " && echo done", " 2>&1 | tee log", " > >(tee log)", "\nwait $!", " &\nwait"]


def generated(numbers: random.Random) -> str:
    lines = numbers.sample(BEFORE, numbers.randint(0, 4))
    for _ in range(numbers.randint(1, 2)):
        words = [
            numbers.choice(["torchrun", "python3 -m torch.distributed.run", "nsys profile torchrun", "exec torchrun"])
        ]
        for option in numbers.sample(OPTIONS, numbers.randint(0, 5)):
            words.append(f"{option}{numbers.choice(['=', ' ', ' '])}{numbers.choice(VALUES)}")
        words += numbers.choice([[], ["$A"], ['"${B[@]}"']])
        words.append("train.py")
        words += numbers.sample(["--max_restarts 5", "--lr 1e-3", '--x "a;b"', "--nnodes 2"], numbers.randint(0, 3))
        lines.append(numbers.choice([" ", " \\\n  "]).join(words) + numbers.choice(AFTER))
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("seed", range(150))
def test_every_script_of_a_result_is_valid(seed: int):
    script = generated(random.Random(seed))
    check = ["bash", "-n", "-c"]
    assert subprocess.run([*check, script], capture_output=True, check=False).returncode == 0, f"seed {seed}: {script}"
    made = script_of(converted(script))
    done = subprocess.run([*check, made], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"seed {seed}: {done.stderr}\n{script}\nbecame\n{made}"
    for kept in ("--max_restarts 5", "--lr 1e-3", '--x "a;b"', "sync", "tee log", "set -ex"):
        assert made.count(kept) == script.count(kept), f"seed {seed}: {kept}\n{script}\nbecame\n{made}"
