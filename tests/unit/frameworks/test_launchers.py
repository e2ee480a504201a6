"""Jobs whose commands start ranks by a launcher of another system: replaced by allranks' own launch, or refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from allranks.api.pool import PoolSpec
from allranks.api.status import Status
from allranks.core.facts.model import Platform
from allranks.core.objects import commands, pods
from allranks.core.reconcile import reconcile
from support.builders import CLUSTER, job, observed, table

LOCAL = Platform(helper_image="", local=True)
WORKERS = {
    "launcher": {"framework": "mpi", "roles": {"launcher": 1, "worker": 4}},
    "mpi": {"framework": "horovod", "horovod": {"controller": "MPI"}, "roles": {"launcher": 1, "worker": 4}},
}


def workers(number: int, **fields: Any) -> dict[str, Any]:
    return {"roles": {"worker": {"replicas": number, **fields}}}


def words(text: str) -> list[str]:
    return text.split()


def shell(script: str) -> list[str]:
    return ["bash", "-c", script]


def program(platform: Platform = CLUSTER, **fields: Any) -> list[str]:
    """Return the command line of the pod that runs the job's command, without what allranks puts before it."""
    made = pods.objects(job(**fields), Status(), platform).pods
    names = ("launcher", "head")
    [pod, *_] = [pod for pod in made if any(name in pod["metadata"]["name"] for name in names)] or made
    container = pod["spec"]["containers"][0]
    command = [*container["command"], *container.get("args", ())]
    before = {"/allranks/horovod_gloo.py": 0, "/etc/allranks/mpi_rank.sh": 2, "/allranks/ray_node.py": 2}
    for index, text in enumerate(command[:2]):
        if text in before:
            return command[index + 1 + before[text] :]
    return command


def sentences(**fields: Any) -> list[str]:
    return [message for _, message in commands.problems(job(**fields))]


HOROVODRUN = ["horovodrun", "-np", "4", "-H", "localhost:4", "python", "train.py"]
ALONE = ["torchrun", "--standalone", "a.py"]
MPIRUN = ["mpirun", "-np", "4", "-H", "server1:2,server2:2", "python", "train.py"]


@table(
    ("horovodrun", {"framework": "horovod", "command": HOROVODRUN, **workers(4)}, ["python", "train.py"]),
    (
        "horovodrun, with the slots of one worker",
        {"framework": "horovod", "command": HOROVODRUN, "horovod": {"slotsPerWorker": 4}, **workers(1)},
        ["python", "train.py"],
    ),
    (
        "horovodrun without a number of ranks",
        {"framework": "horovod", "command": ["horovodrun", "--gloo", "python", "train.py"], **workers(3)},
        ["python", "train.py"],
    ),
    (
        "options of horovodrun that are variables",
        {"framework": "horovod", "command": ["horovodrun", "-np", "2", "--timeline-filename", "/t 1", "train"]},
        ["env", "HOROVOD_TIMELINE=/t 1", "train"],
    ),
    (
        "horovodrun in a script",
        {"framework": "horovod", "command": shell("cd /app && A=1 exec horovodrun -np 2 train '$X y' | tee log")},
        shell("cd /app && A=1 exec train '$X y' | tee log"),
    ),
    (
        "horovodrun as arguments of the job",
        {"framework": "horovod", "command": ["horovodrun"], "args": ["-np", "2", "train", "-v"]},
        ["train", "-v"],
    ),
    (
        "elastic horovodrun",
        {
            "framework": "horovod",
            "elastic": {"minReplicas": 1, "maxReplicas": 4},
            "horovod": {"slotsPerWorker": 2},
            "command": ["horovodrun", "-np", "4", "--min-np", "2", "--max-np", "8", "train"],
        },
        ["python3", "/allranks/horovod_elastic.py", "train"],
    ),
    (
        "mpirun without MPI, as its documentation writes it",
        {
            "framework": "horovod",
            "command": [*MPIRUN[:5], "-bind-to", "none", "-map-by", "slot", "-x", "A=1", "-x", "PATH", *MPIRUN[5:]],
            **workers(4),
        },
        ["env", "A=1", "python", "train.py"],
    ),
    (
        "options that connect the nodes of torchrun",
        {
            "command": words(
                "python -m torch.distributed.launch --nnodes 2 --node_rank=0 --master_addr "
                "10.0.0.1 --nproc_per_node=2 train.py --nnodes 3"
            )
        },
        ["python", "-m", "torch.distributed.launch", "--nproc_per_node=2", "train.py", "--nnodes", "3"],
    ),
    (
        "variables of a shell without a shell",
        {"command": words("torchrun --nnodes 2 --node_rank $NODE --master_addr=${MASTER} train.py")},
        ["torchrun", "train.py"],
    ),
    (
        "torchrun in a script",
        {"command": shell("cd /app; torchrun --nnodes=2 --node_rank=$RANK --master_addr=a train.py")},
        shell("cd /app; torchrun --node_rank=$RANK train.py"),
    ),
    (
        "a range of nodes that has the number of pods",
        {"command": ["torchrun", "--nnodes=1:4", "--rdzv-id=1", "--rdzv-endpoint=a:1", "train.py"]},
        ["torchrun", "train.py"],
    ),
    (
        "torchrun behind a wrapper",
        {"command": ["nsys", "profile", "-o", "/p", "torchrun", "--nnodes=2", "train.py"]},
        ["nsys", "profile", "-o", "/p", "torchrun", "train.py"],
    ),
    (
        "the addresses of machines of Accelerate",
        {
            "command": words(
                "accelerate launch --num_machines=2 --num_processes=4 --machine_rank 0 "
                "--main_process_ip=10.0.0.1 --main_process_port 29500 train.py"
            )
        },
        words(
            "accelerate launch --num_machines=2 --num_processes=4 --machine_rank "
            "$(NODE_RANK) --main_process_ip=$(MASTER_ADDR) --main_process_port $(MASTER_PORT) train.py"
        ),
    ),
    (
        "a command in the template",
        {
            "command": None,
            "template": {"spec": {"containers": [{"name": "trainer", "command": ["torchrun", "--nnodes=2", "a.py"]}]}},
        },
        ["torchrun", "a.py"],
    ),
)
@pytest.mark.parametrize("platform", [CLUSTER, LOCAL], ids=["cluster", "local"])
def test_a_launcher_that_starts_the_ranks_of_the_job_is_replaced_with_a_note(case, platform: Platform):
    fields, expected = case
    assert program(platform, **fields) == expected
    assert sentences(**fields) == []
    assert {remark.severity for remark in commands.remarks(job(**fields))} == {"note"}


@table(
    ("plain torchrun", {"command": ["torchrun", "--nproc-per-node", "2", "--max-restarts=0", "train.py"]}),
    ("variables of allranks", {"command": ["torchrun", "--nnodes=$(NNODES)", "--node-rank", "$(NODE_RANK)", "a.py"]}),
    (
        "a rendezvous of the user's own",
        {"command": ["torchrun", "--nnodes=2", "--rdzv_backend=c10d", "--rdzv_endpoint=$(HOST):1", "a.py"]},
    ),
    ("one pod", {"command": ["torchrun", "--standalone", "--nproc-per-node=4", "a.py"], **workers(1)}),
    ("Accelerate", {"command": ["accelerate", "launch", "--multi_gpu", "a.py"]}),
    ("Accelerate in one pod", {"command": ["accelerate", "launch", "--num_processes", "4", "a.py"], **workers(1)}),
    ("DeepSpeed in one pod", {"command": ["deepspeed", "--num_gpus=4", "a.py"], **workers(1)}),
    ("DeepSpeed that gets the addresses", {"command": ["deepspeed", "--no_ssh", "--node_rank=$(RANK)", "a.py"]}),
    ("mpirun in one pod", {"command": ["mpirun", "-np", "4", "train"], **workers(1)}),
    ("options in a variable", {"command": shell("torchrun $ARGS train.py")}),
    ("the program's own options", {"command": ["torchrun", "train.py", "--standalone", "--nnodes", "7"]}),
    ("another program", {"command": ["python3", "train.py", "--standalone"]}),
    ("a branch", {"command": shell("if [ $RANK = 0 ]; then torchrun --standalone a.py; fi; torchrun b.py")}),
    ("torchrun of spmd", {"framework": "spmd", "command": ["torchrun", "--nnodes=$(NNODES)", "train.py"]}),
    ("Ray of spmd", {"framework": "spmd", "command": shell("ray start --address=$MASTER_ADDR:1 --block")}),
    ("MPI", {**WORKERS["launcher"], "command": ["mpirun", "-np", "4", "train"]}),
    ("MPI of Horovod", {**WORKERS["mpi"], "command": ["mpirun", "-np", "4", "train"]}),
    ("a driver of Ray", {"framework": "ray", "roles": {"head": 1, "worker": 2}, "command": ["mpirun", "train"]}),
)
def test_a_launcher_that_starts_one_group_keeps_its_command(case):
    [fields] = case
    if "rdzv_backend=c10d" not in str(fields):
        assert commands.remarks(job(**fields)) == []
        written = job(**fields).spec
        assert program(**fields)[-len(written.command or ()) :] == written.command
    assert sentences(**fields) == []


@table(
    (
        "horovodrun with other ranks",
        {"framework": "horovod", "command": HOROVODRUN, **workers(1)},
        "horovodrun starts 4 ranks, and this job has 1 (workers x slotsPerWorker, 1 x 1): "
        "set horovod.slotsPerWorker: 4, and write command: [python, train.py]",
    ),
    (
        "a number of ranks that the slots of the workers do not divide",
        {"framework": "horovod", "command": HOROVODRUN, "horovod": {"slotsPerWorker": 2}, **workers(3)},
        "horovodrun starts 4 ranks, and this job has 6 (workers x slotsPerWorker, 3 x 2): "
        "set roles.worker.replicas: 2, and write command: [python, train.py]",
    ),
    (
        "ranks that a variable determines",
        {"framework": "horovod", "command": shell("horovodrun -np $N python train.py")},
        "horovodrun starts $N ranks, and this job has 2 (workers x slotsPerWorker, 2 x 1): "
        'set roles.worker.replicas and horovod.slotsPerWorker, and write command: [bash, -c, "python train.py"]',
    ),
    (
        "an option without a counterpart",
        {"framework": "horovod", "command": ["horovodrun", "-np", "2", "--autotune", "train"]},
        "allranks starts the ranks, and has no counterpart of --autotune: write command: [train]",
    ),
    (
        "elastic horovodrun in another job",
        {"framework": "horovod", "command": ["horovodrun", "-np", "2", "--max-np", "4", "train"]},
        "horovodrun starts at most 4 ranks: set elastic to these bounds, in workers, and write command: [train]",
    ),
    (
        "torchrun in a Horovod job",
        {"framework": "horovod", "command": ["torchrun", "train.py"]},
        "torchrun would run 2 times, each with ranks of its own: write command: [python3, train.py], or use "
        "framework pytorch",
    ),
    (
        "torchrun that trains alone",
        {"command": shell("cd /app && torchrun --standalone --nproc-per-node=2 train.py"), **workers(3)},
        "--standalone trains each of the 3 pods alone: "
        'write command: [bash, -c, "cd /app && torchrun --nproc-per-node=2 train.py"]',
    ),
    (
        "torchrun that trains alone when the job grows",
        {
            "command": ALONE,
            "elastic": {"minReplicas": 1, "maxReplicas": 4},
            **workers(1),
        },
        "--standalone trains each of the 4 pods alone: write command: [torchrun, a.py]",
    ),
    (
        "another number of nodes",
        {"command": ["torchrun", "--nnodes", "4", "--node_rank", "0", "train.py"]},
        "--nnodes 4 is not the number of pods with ranks of this job, which is 2: write command: [torchrun, train.py]",
    ),
    (
        "another number of machines",
        {"command": ["accelerate", "launch", "--num_machines", "4", "--machine_rank=0", "train.py"]},
        "--num_machines 4 is not the number of pods with ranks of this job, which is 2: write command: "
        '[accelerate, launch, --num_machines, "2", "--machine_rank=$(NODE_RANK)", train.py]',
    ),
    (
        "Accelerate with the launcher of DeepSpeed",
        {"command": ["accelerate", "launch", "--use_deepspeed", "--num_machines=2", "train.py"]},
        "DeepSpeed's launcher would look for the other pods in a hostfile, which does not exist: write command: "
        "[accelerate, launch, --use_deepspeed, --deepspeed_multinode_launcher, standard, --num_machines=2, train.py]",
    ),
    (
        "DeepSpeed in several pods",
        {"command": ["deepspeed", "--num_gpus", "4", "--hostfile=hosts", "train.py", "--deepspeed", "ds.json"]},
        "deepspeed starts ranks over ssh, or in each of the 2 pods a training of its own: write command: "
        "[torchrun, --nproc-per-node=4, train.py, --deepspeed, ds.json]",
    ),
    (
        "mpirun in a job of PyTorch",
        {"command": ["mpirun", "-np", "8", "python", "train.py"]},
        "mpirun would run 2 times, each with ranks of its own: write command: [python, train.py], or use framework mpi",
    ),
    (
        "mpirun in a job of JAX",
        {"framework": "jax", "command": ["mpirun", "-np", "2", "python", "train.py"]},
        "mpirun would run 2 times, each with ranks of its own: write command: [python, train.py], or use framework mpi",
    ),
    (
        "horovodrun in a job of TensorFlow",
        {"framework": "tensorflow", "roles": {"chief": 1, "worker": 2, "ps": 1}, "command": HOROVODRUN},
        "horovodrun would run 3 times, each with ranks of its own: write command: [python, train.py], or use "
        "framework horovod",
    ),
    (
        "torchrun in an SPMD job",
        {"framework": "spmd", "command": ["torchrun", "train.py"]},
        "torchrun would run 2 times, each with ranks of its own: write command: [python3, train.py], or use "
        "framework pytorch",
    ),
    (
        "a cluster of Ray in each pod",
        {"command": ["ray", "start", "--head", "--block"]},
        "ray start would run 2 times, each with ranks of its own: use framework ray",
    ),
    (
        "ray start",
        {"framework": "ray", "roles": {"head": 1, "worker": 2}, "command": ["ray", "start", "--head"]},
        "allranks starts Ray in each pod: write the command of the program that uses Ray, or set ray.idleSeconds "
        "instead of a command, for a cluster to which drivers connect",
    ),
    (
        "ray start in a script",
        {
            "framework": "ray",
            "roles": {"head": 1, "worker": 2},
            "command": shell("cd /app && ray start --head --port=6379 && python t.py"),
        },
        "allranks starts Ray in each pod: write the command of the program that uses Ray, for example command: "
        '[bash, -c, "cd /app && python t.py"]',
    ),
)
def test_a_launcher_that_would_start_other_ranks_is_refused_with_the_line_to_write(case):
    fields, expected = case
    assert sentences(**fields) == [expected]


@pytest.mark.parametrize("kind", WORKERS)
@table(
    ("mpirun", ["mpirun", "-np", "4", "train"], ["mpirun", "-np", "4", "train"], []),
    ("hosts of another system", MPIRUN, ["mpirun", "-np", "4", "python", "train.py"], []),
    (
        "a script that calls mpirun",
        shell("cd /app && mpirun -np 4 --hostfile hosts train -f 2"),
        shell("cd /app && mpirun -np 4 train -f 2"),
        [],
    ),
    (
        "a script with hosts of its own",
        shell("make-hosts > hosts; mpirun --hostfile hosts train"),
        shell("make-hosts > hosts; mpirun --hostfile hosts train"),
        [],
    ),
    (
        "a script that cannot be read",
        shell("cat <<EOF\nx\nEOF\nmpirun train"),
        shell("cat <<EOF\nx\nEOF\nmpirun train"),
        [],
    ),
    (
        "more ranks than the hosts of this job have",
        ["mpirun", "-np", "8", "-H", "a:2,b:2,c:2,d:2", "train"],
        None,
        ["mpirun starts 8 ranks, and this job has 4 (workers x slotsPerWorker, 4 x 1): set {}.slotsPerWorker: 2"],
    ),
    ("torchrun", ["torchrun", "train.py"], None, ["torchrun would run 4 times, each with ranks of its own: {}"]),
)
def test_mpirun_is_never_inside_mpirun_and_both_frameworks_treat_a_command_alike(case, kind: str):
    command, expected, problems = case
    fields = {**WORKERS[kind], "command": command}
    if expected:
        assert program(**fields) == expected
        own = {"launcher": {"replicas": 1, "command": command}, "worker": 4}
        assert program(**{**fields, "command": None, "roles": own}) == expected
    said = ["write command: [python3, train.py], or use framework pytorch", fields["framework"]]
    assert sentences(**fields) == [text.format(said["slots" in text]) for text in problems]


@table(
    ("the command", ["python3", "a.py"], "python3", 0),
    ("mpirun", ["mpirun", "-x", "A=B", "/usr/bin/python3.12", "-u", "a.py"], "/usr/bin/python3.12", 3),
    ("a script", shell("cd /app && mpirun -np 4 python a.py"), "python", 2),
    ("mpi4py", ["mpirun", "python3", "-m", "mpi4py", "a.py"], "", 0),
    ("mpi4py with options", ["python3", "-u", "-m", "mpi4py", "a.py"], "", 0),
    ("another module", ["python3", "-m", "solver"], "python3", 0),
    ("a program that is not Python", ["mpirun", "./solver"], "", 0),
    ("Python before mpirun", shell("python prepare.py && mpirun ./solver"), "", 0),
)
def test_a_program_of_mpi4py_that_hangs_after_an_exception_is_a_warning(case):
    command, python, place = case
    sentence = "on a cluster, the ranks of mpi4py wait for one that ends by an exception: write"
    expected = [(f"spec.command[{place}]", f"{sentence} {python} -m mpi4py")] if python else []
    fields = {"framework": "mpi", "roles": {"launcher": 1, "worker": 4}, "command": command}
    remarks = commands.remarks(job(**fields))
    assert [(remark.path, remark.message) for remark in remarks if "mpi4py" in remark.message] == expected


@pytest.mark.parametrize("kind", WORKERS)
def test_horovodrun_in_a_job_with_a_launcher_is_replaced_by_mpirun(kind: str):
    command = program(**WORKERS[kind], command=HOROVODRUN)
    assert command[:3] == ["mpirun", "-np", "4"]
    assert command[-2:] == ["python", "train.py"]
    assert "horovodrun" not in command
    roles = {"worker": 4, "launcher": {"replicas": 1, "command": HOROVODRUN}}
    assert sentences(**{**WORKERS[kind], "command": None, "roles": roles}) == [
        "allranks starts the ranks by mpirun: remove this, and in spec write command: [python, train.py]"
    ]


def test_ranks_that_follow_from_a_pool_are_compared_when_the_pool_exists():
    fields = {"framework": "horovod", "command": HOROVODRUN, "pool": "gpus", **workers(2)}
    assert sentences(**fields) == []
    for gpus, problems in ((2, 0), (8, 1)):
        pool = PoolSpec.model_validate({"gpu": {"count": gpus}})
        assert len(commands.problems(job(**fields), replace(CLUSTER, pools={"gpus": pool}))) == problems


def test_a_launcher_in_a_branch_is_a_warning():
    fields = {"framework": "horovod", "command": shell("if [ -f x ]; then horovodrun -np 2 train; fi")}
    assert sentences(**fields) == []
    [remark] = commands.remarks(job(**fields))
    assert remark == (
        "spec.command[2]",
        "allranks starts the ranks: if horovodrun runs, it starts others",
        "warning",
    )


@table(
    ("the job's command", {"command": ALONE}, "spec.command[0]"),
    ("the job's script", {"command": shell("torchrun --standalone a.py")}, "spec.command[2]"),
    (
        "a role's command",
        workers(2, command=["torchrun"], args=["--standalone", "a.py"]),
        "spec.roles.worker.command[0]",
    ),
    (
        "the template",
        {
            "command": None,
            "template": {"spec": {"containers": [{"name": "trainer", "command": ALONE}]}},
        },
        "spec.template.spec.containers[trainer].command",
    ),
    (
        "two roles with the same command",
        {"command": ALONE, "roles": {"master": 1, "worker": 2}},
        "spec.command[0]",
    ),
)
def test_a_refused_command_is_reported_once_with_its_path(case):
    fields, path = case
    assert [place for place, _ in pods.problems(job(**fields))] == [path]


def test_the_operator_fails_a_job_whose_launcher_would_start_other_ranks():
    plan = reconcile(observed(job("horovod", {"worker": 1}, command=HOROVODRUN), Status()))
    assert plan.next
    [condition] = [condition for condition in plan.next.conditions if condition.type == "Failed"]
    assert condition.reason == "InvalidSpec"
    assert condition.message.startswith("spec.command[0]: horovodrun starts 4 ranks, and this job has 1")
    assert not plan.create
