"""Notes on commands that contradict the rendezvous and the hosts that allranks sets."""

from __future__ import annotations

from allranks.authoring.checks.notes import command_notes
from support.builders import job, table

ALONE = "each pod would train alone; allranks connects the ranks: remove --standalone"


def replaced(option: str) -> str:
    return f"allranks sets it for each rank, and this value replaces it: remove {option}"


# Sentence, fields of the job, notes.
CASES = [
    (
        "torchrun --standalone trains each pod alone",
        {"command": ["torchrun", "--standalone", "--nproc-per-node=1", "train.py"]},
        [("spec.command[1]", ALONE)],
    ),
    (
        "options of the rendezvous replace what allranks sets",
        {"command": ["torchrun", "--nnodes", "2", "--node_rank=0", "--rdzv-endpoint", "a:1", "train.py"]},
        [
            ("spec.command[1]", replaced("--nnodes")),
            ("spec.command[3]", replaced("--node_rank")),
            ("spec.command[4]", replaced("--rdzv-endpoint")),
        ],
    ),
    (
        "the module is the same program",
        {"command": ["/venv/bin/python3.11", "-u", "-m", "torch.distributed.run", "--master-addr=a", "train.py"]},
        [("spec.command[4]", replaced("--master-addr"))],
    ),
    (
        "arguments after the command are merged with it",
        {"command": ["torchrun"], "args": ["--standalone", "train.py"]},
        [("spec.args[0]", ALONE)],
    ),
    (
        "a role's own command has its own path",
        {"roles": {"worker": {"replicas": 2, "command": ["torchrun"], "args": ["--standalone", "train.py"]}}},
        [("spec.roles.worker.args[0]", ALONE)],
    ),
    (
        "a role's own arguments follow the job's command",
        {"command": ["torchrun"], "roles": {"worker": {"args": ["--standalone", "train.py"]}}},
        [("spec.roles.worker.args[0]", ALONE)],
    ),
    (
        "the same command of two roles is noted once",
        {"command": ["torchrun", "--standalone", "train.py"], "roles": {"master": {}, "worker": {"replicas": 2}}},
        [("spec.command[1]", ALONE)],
    ),
    ("options of the program are its own", {"command": ["torchrun", "train.py", "--nnodes", "2", "--standalone"]}, []),
    ("a value that refers to a variable may be ours", {"command": ["torchrun", "--nnodes=$(NNODES)", "train.py"]}, []),
    (
        "options that connect no nodes remain",
        {"command": ["torchrun", "--nproc-per-node", "2", "--rdzv-conf", "timeout=900", "--max-restarts=0", "t.py"]},
        [],
    ),
    ("plain python has no launcher", {"command": ["python3", "train.py", "--standalone"]}, []),
    ("another module", {"command": ["python3", "-m", "train", "--standalone"]}, []),
    (
        "allranks starts the ranks of Horovod",
        {"framework": "horovod", "command": ["horovodrun", "-np", "2", "python3", "train.py"]},
        [
            (
                "spec.command[0]",
                "allranks starts the ranks of Horovod: remove horovodrun and its options, and keep the program",
            )
        ],
    ),
    (
        "a launcher of the user's own uses the hosts of allranks",
        {
            "framework": "horovod",
            "horovod": {"controller": "MPI"},
            "command": ["python3", "train.py"],
            "roles": {
                "launcher": {"command": ["mpirun", "-np", "2", "--hostfile", "hosts", "python3", "train.py"]},
                "worker": {"replicas": 2},
            },
        },
        [
            (
                "spec.roles.launcher.command[3]",
                "allranks writes the hostfile of mpirun: remove --hostfile and its value",
            )
        ],
    ),
    ("TensorFlow has no launcher", {"framework": "tensorflow", "command": ["torchrun", "--standalone", "t.py"]}, []),
]


@table(*CASES)
def test_an_argument_that_contradicts_allranks_is_noted_with_its_path(case):
    fields, expected = case
    assert command_notes(job(**fields)) == expected
