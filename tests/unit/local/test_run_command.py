"""`allranks run` as a user runs it: real processes, signals, exit statuses, and no process left."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import pty
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import yaml

from allranks.cli.live import session
from allranks.core.facts import rank_reports
from allranks.local import run_directories
from allranks.sdk.history import history
from allranks.views.report import text
from allranks.views.report.model import build_report
from allranks.views.report.run_files import read_run_files

MARK = "TEST_OF_RUN"
SECONDS = 300.0

UNTIL_GO = "while [ ! -e go ]; do sleep 0.02; done"
"""Waits for a file that the test creates."""
MEET = f"touch up-$ALLRANKS_ROLE-$ALLRANKS_INDEX; {UNTIL_GO}; echo done $RANK"
STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    open("up-" + os.environ["ALLRANKS_ROLE"] + "-" + os.environ["ALLRANKS_INDEX"], "w").close()
while True:
    time.sleep(1)
"""
"""Ignores SIGTERM, and so does its grandchild in another session."""


class Cli:
    """Runs the command in its own directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.mark = uuid.uuid4().hex
        self.started: list[subprocess.Popen[str]] = []

    def job(self, *command: str, name: str = "job", file: str = "job.yaml", **spec: Any) -> dict[str, Any]:
        """A manifest, appended to `file`."""
        env = [{"name": MARK, "value": self.mark}, *spec.pop("env", ())]
        roles = spec.pop("roles", {"master": {"replicas": 1}, "worker": {"replicas": 2}})
        fields = {"framework": "pytorch", "image": "me/train:1", "command": list(command), "env": env, "roles": roles}
        manifest = {
            "apiVersion": "allranks.dev/v1alpha1",
            "kind": "DistributedTraining",
            "metadata": {"name": name},
            "spec": {**fields, **spec},
        }
        with (self.directory / file).open("a") as out:
            out.write("---\n" + yaml.safe_dump(manifest))
        return manifest

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        given = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        argv = [sys.executable, "-m", "allranks", "run", *(arguments or ("job.yaml",))]
        process = subprocess.Popen(argv, cwd=self.directory, text=True, **given)
        self.started.append(process)
        return process

    def run(self, *arguments: str, stdin: str | None = None, **options: Any) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments, **({"stdin": subprocess.PIPE} if stdin else {}), **options)
        out, err = process.communicate(stdin, timeout=SECONDS)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def wait_for(self, condition: Callable[[], Any], seconds: float = SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "timed out"
            time.sleep(0.01)

    def wait_for_ranks(self, count: int = 3) -> None:
        self.wait_for(lambda: len(list(self.directory.glob("up-*"))) == count)

    @staticmethod
    def read_until(process: subprocess.Popen[str], words: str) -> list[str]:
        """Its lines up to the first one with these words. Reads no further: `communicate` does not see what a stream of
        lines has in its buffer."""
        assert process.stdout
        text = b""
        while byte := os.read(process.stdout.fileno(), 1):
            text += byte
            if byte == b"\n" and words.encode() in text.splitlines()[-1]:
                break
        lines = text.decode().splitlines()
        assert words in lines[-1], lines
        return lines

    def left(self) -> list[int]:
        """Processes of the jobs of this test."""
        found = []
        for environ in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if self.mark.encode() in environ.read_bytes():
                    found.append(int(environ.parent.name))
        return found

    def rank(self, role: str, index: int) -> int:
        """Pid of a rank's first process."""
        wanted = {f"ALLRANKS_ROLE={role}".encode(), f"ALLRANKS_INDEX={index}".encode()}
        for pid in self.left():
            with contextlib.suppress(OSError):
                environ = set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
                if wanted <= environ and "shim.py" in Path(f"/proc/{parent_of(pid)}/cmdline").read_text():
                    return pid
        raise AssertionError(f"{role}-{index} does not run")

    def status(self, run: str = "runs/job/[0-9]*") -> dict[str, Any]:
        (file,) = self.directory.glob(f"{run}/status.yaml")
        status: dict[str, Any] = yaml.safe_load(file.read_text())["status"]
        return status

    def log(self, pod: str) -> str:
        (file,) = self.directory.glob(f"runs/job/[0-9]*/logs/{pod}.log")
        return file.read_text()


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    here = Cli(tmp_path)
    yield here
    try:
        assert here.left() == [], "a process outlived `allranks run`"
    finally:
        for process in here.started:
            process.kill()
            process.communicate()
        for pid in here.left():
            os.kill(pid, signal.SIGKILL)


# Complete runs.


def test_all_ranks_find_each_other_and_the_job_succeeds(cli: Cli) -> None:
    cli.job("sh", "-c", f"echo $RANK/$WORLD_SIZE, $OMP_NUM_THREADS, at $MASTER_ADDR:$MASTER_PORT; {UNTIL_GO}")
    process = cli.start()
    began = cli.read_until(process, "s Running, 3/3 pods running")
    (cli.directory / "go").touch()
    out, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, err) == (0, ""), out
    lines = [*began, *out.splitlines()]
    ranks = sorted(line for line in lines if " | " in line)
    port = ranks[0].rsplit(":")[-1]
    threads = max(1, len(os.sched_getaffinity(0)) // 3)
    pods = ("master-0", "worker-0", "worker-1")
    assert ranks == [f"{pod} | {n}/3, {threads}, at 127.0.0.1:{port}" for n, pod in enumerate(pods)]
    assert lines[0] == "note: image me/train:1 is not used here: programs come from this machine"
    assert any(line.startswith("job Succeeded in ") and line.endswith("(3 pods, no restarts)") for line in lines)
    assert cli.status()["phase"] == "Succeeded"
    assert cli.log("job-worker-0-0") == f"1/3, {threads}, at 127.0.0.1:{port}\n"


def test_a_run_ends_with_its_outcome_the_report_command_and_the_logs(cli: Cli) -> None:
    cli.job("true")
    done = cli.run()
    *_, outcome, report, logs = done.stdout.splitlines()
    assert outcome.startswith("job Succeeded in ")
    directory = report.removeprefix("Report: allranks report --run-dir ")
    assert logs == f"Logs:   {directory}/logs"
    assert (cli.directory / directory).resolve() == (cli.directory / "runs" / "job" / "latest").resolve()
    assert "status:" not in done.stdout


def test_arguments_after_a_double_dash_and_variables_reach_every_rank(cli: Cli) -> None:
    cli.job("sh", "-c", 'echo "$A" "$@"', "sh", args=["--epochs", "1"])
    done = cli.run("job.yaml", "-e", "A=x y", "--", "--lr", "3")
    assert done.returncode == 0, done.stderr
    assert cli.log("job-master-0-0") == "x y --epochs 1 --lr 3\n"


def test_a_script_runs_without_a_manifest(cli: Cli) -> None:
    (cli.directory / "show.py").write_text("import os, sys\nprint(os.environ['TF_CONFIG'], sys.argv[1:])")
    options = ("--framework", "tensorflow", "-n", "2", "-e", f"{MARK}={cli.mark}", "--save", "job.yaml")
    done = cli.run("show.py", *options, "--", "--lr", "3")
    assert done.returncode == 0, done.stderr
    (log,) = cli.directory.glob("runs/show/latest/logs/show-worker-0-0.log")
    assert '"index":0' in log.read_text()
    assert "['--lr', '3']" in log.read_text()
    saved = yaml.safe_load((cli.directory / "job.yaml").read_text())
    assert saved["spec"]["roles"] == {"worker": {"replicas": 2}}
    again = cli.run("show.py", *options)
    assert (again.returncode, "--save job.yaml: the file exists" in again.stderr) == (2, True)


@pytest.mark.parametrize("path", ["framework", "spec.framework"])
def test_set_framework_of_a_script_also_chooses_its_command(cli: Cli, path: str) -> None:
    (cli.directory / "show.py").write_text("import torch")
    done = cli.run("show.py", "--set", f"{path}=tensorflow", "--dry-run")
    assert done.returncode == 0, done.stderr
    [pod] = (pod for pod in yaml.safe_load_all(done.stdout) if pod)
    [trainer] = pod["spec"]["containers"]
    assert "TF_CONFIG" in [variable["name"] for variable in trainer["env"]]
    assert trainer["command"] == ["python3", "show.py"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["job.yaml", "-n", "2"], "change a manifest with --set"),
        (["a.py", "b.py"], "a script runs alone"),
        (["a.py", "--set", "framework=jaxx"], "--set framework=jaxx: there is no such framework"),
        (["a.py", "--set", "framework=jax", "--framework", "pytorch"], "differ: specify one of them"),
        (["missing.py"], "missing.py: cannot be read: no such file or directory"),
        (["job.yaml", "-e", "A"], "--env A: must be NAME=VALUE"),
        ([], "no program given"),
    ],
)
def test_wrong_use_of_scripts_and_options(cli: Cli, arguments: list[str], message: str) -> None:
    cli.job("true")
    done = cli.run(*arguments) if arguments else cli.run("-q")
    assert done.returncode == 2
    assert message in done.stderr


def test_the_job_ends_with_its_chief_and_does_not_wait_for_a_parameter_server(cli: Cli) -> None:
    roles = {"chief": {"replicas": 1}, "worker": {"replicas": 1}, "ps": {"replicas": 1, "command": ["sleep", "1000"]}}
    cli.job("sh", "-c", "echo $TF_CONFIG", framework="tensorflow", roles=roles)
    done = cli.run("job.yaml", "--grace-period", "1")
    assert done.returncode == 0, done.stdout
    assert json.loads(cli.log("job-chief-0-0"))["task"] == {"type": "chief", "index": 0}


def test_a_killed_rank_restarts_the_group_and_is_named(cli: Cli) -> None:
    cli.job("sh", "-c", MEET, restart={"maxRestarts": 1})
    process = cli.start()
    cli.wait_for_ranks()
    for file in cli.directory.glob("up-*"):
        file.unlink()
    os.kill(cli.rank("worker", 1), signal.SIGKILL)
    cli.wait_for_ranks()
    (cli.directory / "go").touch()
    out, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, out
    status = cli.status()
    assert (status["attempt"], status["restarts"]["counted"]) == (1, 1)
    failure = status["lastFailure"]
    assert (failure["role"], failure["index"], failure["signal"], failure["attempt"]) == ("worker", 1, 9, 0)
    assert cli.log("job-worker-1-1") == "done 2\n"
    assert "worker-1 was ended by signal 9" in out


def test_a_bug_fails_the_job_with_its_last_lines_and_the_path_of_the_log(cli: Cli) -> None:
    cli.job("sh", "-c", 'echo loading; [ $RANK = 1 ] || sleep 100; echo "ValueError: no such column" >&2; exit 1')
    done = cli.run("job.yaml", "--grace-period", "0", "--restarts", "3")
    assert done.returncode == 1
    block = done.stdout[done.stdout.index("First failure") :].splitlines()
    assert block[0].startswith("First failure: worker-0 (rank 1) in attempt 1, after ")
    assert block[0].endswith("s: exit code 1")
    assert block[1:3] == ["  | loading", "  | ValueError: no such column"]
    assert block[3] == "Verdict: Program (the program, its arguments, or what it needs beyond its limits)"
    assert block[4].startswith("Full log: runs/job/")
    assert "ValueError" in (cli.directory / block[4].removeprefix("Full log: ")).read_text()
    assert cli.status()["phase"] == "Failed"


def test_a_program_that_does_not_exist_fails_the_job_naming_it(cli: Cli) -> None:
    cli.job("torchrn", roles={"worker": {}}, restart={"maxRestarts": 3})
    done = cli.run()
    assert done.returncode == 1
    why = "torchrn is not on PATH of this machine: is your environment active?"
    assert done.stdout.count(f"worker-0 could not be started (StartError): {why}\n") == 1
    assert '  | exec: "torchrn": executable file not found in $PATH' in done.stdout
    assert cli.status()["restarts"]["counted"] == 0


@pytest.mark.nightly
def test_a_command_that_a_shell_does_not_find_fails_the_job_at_once(cli: Cli) -> None:
    cli.job("sh", "-c", "torchrn train.py", roles={"worker": {}}, restart={"maxRestarts": 3})
    done = cli.run()
    assert done.returncode == 1
    why = "torchrn is not on PATH of this machine: is your environment active?"
    assert done.stdout.count(f"worker-0 failed with exit code 127 (Error): {why}") == 1
    assert cli.status()["restarts"]["counted"] == 0


@pytest.mark.nightly
def test_a_failure_before_the_first_step_is_restarted_on_request_only(cli: Cli) -> None:
    program = 'echo "attempt $ALLRANKS_ATTEMPT"; [ $ALLRANKS_ATTEMPT = 1 ]'
    cli.job("sh", "-c", program, roles={"worker": {}})
    cli.job("sh", "-c", program, roles={"worker": {}}, restart={"maxRestarts": 1}, file="asks.yaml")
    done = cli.run()
    assert done.returncode == 1
    why = "not restarted: no rank has reported a step (--restarts 3 restarts it)"
    assert f"worker-0 failed with exit code 1 (Error): {why}" in done.stdout
    assert cli.run("job.yaml", "--restarts", "1").returncode == 0
    assert cli.run("asks.yaml").returncode == 0
    assert cli.run("asks.yaml", "--restarts", "0").returncode == 1


def test_the_report_of_a_run_has_the_first_and_the_best_value_of_a_metric_and_their_steps(cli: Cli) -> None:
    program = """
from allranks.report import report
for step in range(1, 61):
    report(step=step, total_steps=60, loss=1 / step if step < 40 else float("nan"))
    if step % 10 == 0:
        report(step=step, accuracy={10: 0.5, 20: 0.99, 30: 0.6, 40: 0.2, 50: 0.2, 60: 0.1}[step])
"""
    cli.job(sys.executable, "-c", program, roles={"worker": {}}, framework="spmd")
    done = cli.run()
    assert done.returncode == 0, done.stdout
    [directory] = (cli.directory / "runs" / "job").glob("2*")
    document = json.loads((directory / "job.json").read_text())
    reported = build_report(document, datetime.now(UTC), read_run_files(directory))
    rows = [" ".join(map(str, row)).split() for row in text.metrics(reported).rows]
    assert rows == [
        ["loss", "1", "0.02564", "39", "1", "1", "at", "step", "40"],
        ["accuracy", "0.5", "0.1", "0.1", "60", "0.99", "20"],
    ]
    accurate = [sample for sample in read_run_files(directory).samples if "accuracy" in sample.metrics]
    samples = [(sample.step, sample.metrics["accuracy"]) for sample in accurate]
    assert samples == [(10, 0.5), (20, 0.99), (30, 0.6), (40, 0.2), (50, 0.2), (60, 0.1)]


def test_the_record_of_metrics_marks_the_steps_that_are_repeated_after_a_restart(cli: Cli, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    program = """
import os, signal
from allranks.report import finish, report
attempt = int(os.environ["ALLRANKS_ATTEMPT"])
for step in range(4 if attempt else 1, 9):  # from the checkpoint of step 3
    report(step=step, total_steps=8, loss=10 * attempt + 1 / step)
    if step % 2 == 0:
        report(step=step, accuracy=step / 8 if step < 8 else float("inf"))
    if step == 6 and not attempt:
        finish(10)
        os.kill(os.getpid(), signal.SIGKILL)
"""
    cli.job(sys.executable, "-c", program, roles={"worker": {}}, framework="spmd", restart={"maxRestarts": 1})
    done = cli.run()
    assert done.returncode == 0, done.stdout
    values = history("job", root=cli.directory / "runs")
    assert values == history(cli.directory / "runs" / "job")
    columns = [(value.attempt, value.step, value.repeated) for value in values if value.metric == "loss"]
    first, second = [(0, step, False) for step in range(1, 7)], [(1, step, step <= 6) for step in range(4, 9)]
    assert columns == [*first, *second]
    losses = {value.step: value.value for value in values if value.metric == "loss" and not value.repeated}
    assert losses == pytest.approx({step: 1 / step + 10 * (step > 6) for step in range(1, 9)})
    accuracies = [(value.step, value.value, value.repeated) for value in values if value.metric == "accuracy"]
    assert accuracies[:-1] == [(2, 0.25, False), (4, 0.5, False), (6, 0.75, False), (4, 0.5, True), (6, 0.75, True)]
    step, last, repeated = accuracies[-1]
    assert (step, math.isnan(last), repeated) == (8, True, False)
    times = [value.time for value in values if value.time]
    assert len(times) == len(values)
    assert times == sorted(times)


def test_a_failure_after_a_reported_step_is_restarted(cli: Cli) -> None:
    program = """
import os, sys
from allranks.report import finish, report
report(step=1)
finish(10)
sys.exit(0 if os.environ["ALLRANKS_ATTEMPT"] == "1" else 1)
"""
    cli.job(sys.executable, "-c", program, roles={"worker": {}}, progress={})
    done = cli.run()
    assert done.returncode == 0, done.stdout
    assert cli.status()["restarts"]["counted"] == 1


LOSES_A_RANK = """
import os, sys
from allranks.report import finish, report
attempt, rank = os.environ["ALLRANKS_ATTEMPT"], os.environ["RANK"]
print(f"attempt {attempt} at port {os.environ['MASTER_PORT']} in {os.getppid()}", flush=True)
report(step=1 + int(attempt))
finish(10)
if attempt == "0" and rank == "1":
    print("the end", flush=True)
    os.kill(os.getpid(), 9)
while attempt == "0":
    import time
    time.sleep(1)
"""
"""Its second rank dies in the first attempt, in which the first rank waits for ever."""


@pytest.mark.skipif(sys.platform != "linux", reason="a supervisor adopts orphans, which only Linux allows")
def test_ranks_restart_in_their_pods_with_a_log_for_each_attempt(cli: Cli) -> None:
    roles = {"worker": {"replicas": 2}}
    cli.job(sys.executable, "-c", LOSES_A_RANK, roles=roles, progress={}, restart={"backoffSeconds": 0})
    done = cli.run()
    assert done.returncode == 0, done.stdout
    status = cli.status()
    (past, _) = status["history"]
    assert (past["how"], status["podsOfAttempt"]) == ("InPlace", 0)
    assert past["failure"]["signal"] == 9
    assert past["failure"]["message"].endswith("the end")
    first, second = cli.log("job-worker-1-0"), cli.log("job-worker-1-1")
    assert "attempt 1" not in first
    assert second.startswith("allranks: attempt 1 begins in this pod\nattempt 1 at")
    assert first.splitlines()[0].partition(" at ")[2] == second.splitlines()[1].partition(" at ")[2]


def test_the_last_lines_of_an_attempt_are_of_its_program(cli: Cli) -> None:
    program = """
import os
from allranks.report import finish, report
attempt = int(os.environ["ALLRANKS_ATTEMPT"])
report(step=1 + attempt)
finish(10)
os._exit(5 if attempt < 2 else 0)
"""
    cli.job(sys.executable, "-c", program, roles={"worker": {}}, progress={}, restart={"backoffSeconds": 0})
    done = cli.run()
    assert done.returncode == 0, done.stdout
    failures = [past["failure"] for past in cli.status()["history"] if "failure" in past]
    assert [failure.get("message", "") for failure in failures] == ["", ""]


def test_ranks_restart_with_new_pods_if_a_job_says_so(cli: Cli) -> None:
    program = """
import os
from allranks.report import finish, report
report(step=1)
finish(10)
os._exit(0 if os.path.exists("again") else open("again", "w").close() or 3)
"""
    restart = {"backoffSeconds": 0, "inPlace": "Never"}
    cli.job(sys.executable, "-c", program, roles={"worker": {}}, progress={}, restart=restart)
    done = cli.run()
    assert done.returncode == 0, done.stdout
    assert [past.get("how") for past in cli.status()["history"]] == [None, None]
    assert cli.log("job-worker-0-1") == ""


@pytest.mark.parametrize(
    ("program", "failure", "words"),
    [
        ("exit 138", {"exitCode": 138}, "worker-0 failed with exit code 138 (Error)"),
        ("exit 137", {"exitCode": 137}, "worker-0 failed with exit code 137, the code of SIGKILL (Error)"),
        ("kill -USR1 $$", {"exitCode": 138, "signal": 10}, "worker-0 was ended by signal 10 (Error)"),
    ],
)
def test_a_signal_is_what_the_kernel_reports_and_no_exit_code(
    cli: Cli, program: str, failure: dict[str, int], words: str
) -> None:
    cli.job("sh", "-c", program, roles={"worker": {}}, restart={"maxRestarts": 0})
    done = cli.run()
    assert done.returncode == 1
    assert words in done.stdout
    last = cli.status()["lastFailure"]
    assert {name: last[name] for name in ("exitCode", "signal") if name in last} == failure


@pytest.mark.nightly
def test_that_hang_has_no_effect_without_reports_is_said_once(cli: Cli) -> None:
    cli.job("sh", "-c", MEET, hang={"timeoutSeconds": 1})
    process = cli.start()
    said = "hang: no rank has reported yet; a hang cannot be detected without reports"
    cli.read_until(process, said)
    (cli.directory / "go").touch()
    out, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, out
    assert said not in out


@pytest.mark.nightly
def test_an_option_that_contradicts_allranks_is_refused(cli: Cli) -> None:
    cli.job("torchrun", "--standalone", "train.py", roles={"worker": {"replicas": 2}})
    problem = "--standalone trains each of the 2 pods alone: write command: [torchrun, train.py]"
    error = f"error: job.yaml: job: spec.command[0]: {problem}\n"
    done = cli.run("job.yaml")
    assert done.returncode == 2
    assert error in done.stderr
    validated = subprocess.run(
        [sys.executable, "-m", "allranks", "validate", "job.yaml"], cwd=cli.directory, text=True, capture_output=True
    )
    assert (validated.returncode, validated.stderr) == (2, error)


def test_the_same_signal_twice_of_the_same_rank_fails_the_job_as_a_bug(cli: Cli) -> None:
    cli.job("sh", "-c", "kill -SEGV $$", roles={"worker": {}}, restart={"maxRestarts": 3, "backoffSeconds": 0})
    done = cli.run()
    assert done.returncode == 1
    why = "ended by the same signal twice before any progress: a bug in the program, not a fault"
    assert f" worker-0 was ended by signal 11 (Error): {why}\n" in done.stdout
    assert cli.status()["restarts"]["counted"] == 1


@pytest.mark.nightly
def test_claims_outlive_attempts_and_empty_dirs_do_not(cli: Cli) -> None:
    program = "echo $ALLRANKS_ATTEMPT >> /checkpoints/saved; ls /scratch; touch /scratch/x; [ $ALLRANKS_ATTEMPT = 1 ]"
    trainer = {"name": "trainer", "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}]}
    template = {"spec": {"containers": [trainer], "volumes": [{"name": "scratch", "emptyDir": {}}]}}
    cli.job("sh", "-c", program, roles={"worker": {}}, checkpoint={"claim": "weights"}, template=template)
    done = cli.run("job.yaml", "--restarts", "1")
    assert done.returncode == 0, done.stdout
    (saved,) = cli.directory.glob("runs/job/[0-9]*/volumes/weights/saved")
    assert saved.read_text() == "0\n1\n"
    assert cli.log("job-worker-0-1") == ""
    run = saved.parents[2]
    assert sorted(path.name for path in run.iterdir()) == ["checkpoint", "job.json", "logs", "status.yaml", "volumes"]


@pytest.mark.nightly
def test_a_volume_from_the_command_line_is_kept(cli: Cli) -> None:
    cli.job("sh", "-c", "echo x > /checkpoints/saved", roles={"worker": {}}, checkpoint={"claim": "weights"})
    assert cli.run("job.yaml", "--volume", "weights=mine").returncode == 0
    assert (cli.directory / "mine/saved").read_text() == "x\n"


# Signals.


@pytest.mark.parametrize(
    ("number", "status"),
    [
        (signal.SIGINT, 130),
        pytest.param(signal.SIGTERM, 143, marks=pytest.mark.nightly),
        pytest.param(signal.SIGHUP, 129, marks=pytest.mark.nightly),
    ],
)
def test_a_signal_ends_all_ranks_gracefully(cli: Cli, number: signal.Signals, status: int) -> None:
    program = "trap 'echo saved; exit 0' TERM; touch up-$ALLRANKS_ROLE-$ALLRANKS_INDEX; while :; do sleep 0.02; done"
    cli.job("sh", "-c", program)
    process = cli.start()
    cli.wait_for_ranks()
    asked = datetime.now(UTC)
    process.send_signal(number)
    out, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, err) == (status, "")
    assert out.count(" | saved") == 3
    assert "SIGTERM to 3 pods, SIGKILL after 30 s" in out
    assert "job was interrupted after" in out
    assert cli.status()["phase"] in ("Pending", "Running")  # ranks that the command ended have not failed
    assert "lastFailure" not in cli.status()
    run = run_directories.find_run("job", cli.directory / "runs")
    assert (run.phase, bool(run.ended)) == ("Interrupted", True)
    assert run.ended >= asked


def test_a_second_ctrl_c_kills_at_once(cli: Cli) -> None:
    cli.job(sys.executable, "-c", STUBBORN)
    process = cli.start("job.yaml", "--grace-period", "100000")
    cli.wait_for_ranks()
    process.send_signal(signal.SIGINT)
    cli.read_until(process, "Ctrl-C: SIGTERM to 3 pods")
    time.sleep(0.6)  # within half a second it would be the same key press
    process.send_signal(signal.SIGINT)
    assert process.wait(SECONDS) == 130


def test_ctrl_c_that_is_received_twice_is_one_key_press(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some wrappers forward the Ctrl-C that the terminal has already sent."""

    class Run:
        running, grace = 3, 30.0
        stops: ClassVar[list[bool]] = []

        def save_and_stop(self) -> int:
            return 0

        def stop(self, at_once: bool = False) -> None:
            self.stops.append(at_once)

    now = [10.0]
    monkeypatch.setattr(session, "time", SimpleNamespace(monotonic=lambda: now[0]))
    words = session.WORDS["command"]
    one = session.Session(io.StringIO(), None, colour=False, logs=True, quiet=False, words=words)
    monkeypatch.setattr(one, "_run", Run())
    for moment, stops in ((10.0, [False]), (10.4, [False]), (10.6, [False, True])):
        now[0] = moment
        one._stop(signal.SIGINT)
        assert Run.stops == stops


@pytest.mark.nightly
def test_ctrl_c_after_the_job_finished_does_not_change_its_result(cli: Cli) -> None:
    cli.job("sh", "-c", f"{UNTIL_GO}; [ $RANK = 0 ] || sleep 1000")
    process = cli.start()
    cli.read_until(process, "s Running, 3/3 pods running")
    (cli.directory / "go").touch()
    assert process.stdout is not None
    while not (line := process.stdout.readline()).endswith("s Succeeded\n"):
        assert line
    process.send_signal(signal.SIGINT)
    assert process.wait(SECONDS) == 0
    assert cli.status()["phase"] == "Succeeded"


def test_ranks_that_ignore_sigterm_are_killed_after_the_grace_period(cli: Cli) -> None:
    cli.job(sys.executable, "-c", STUBBORN)
    process = cli.start("job.yaml", "--grace-period", "0.3")
    cli.wait_for_ranks()
    process.send_signal(signal.SIGINT)
    cli.read_until(process, "SIGTERM to 3 pods, SIGKILL after 0.3 s")
    assert process.wait(SECONDS) == 130


def test_kill_9_of_allranks_itself_leaves_no_process(cli: Cli) -> None:
    cli.job(sys.executable, "-c", STUBBORN)
    process = cli.start()
    cli.wait_for_ranks()
    process.kill()
    process.wait(SECONDS)  # a process that ends releases the lock of its run last
    cli.wait_for(lambda: not cli.left())
    run = run_directories.find_run("job", cli.directory / "runs")
    assert (run.phase, bool(run.ended)) == ("Interrupted", True)


@pytest.mark.nightly
def test_kill_9_of_a_shim_leaves_no_process(cli: Cli) -> None:
    cli.job(sys.executable, "-c", STUBBORN, restart={"maxRestarts": 0})
    process = cli.start("job.yaml", "--grace-period", "0.1")
    cli.wait_for_ranks()
    os.kill(parent_of(cli.rank("worker", 0)), signal.SIGKILL)
    assert process.wait(SECONDS) == 1
    assert cli.status()["lastFailure"]["signal"] == 9


@pytest.mark.nightly
def test_an_internal_exception_leaves_no_process(cli: Cli) -> None:
    cli.job(sys.executable, "-c", STUBBORN)
    program = """
import os, sys, time
from pathlib import Path
from allranks.core.reconcile import reconcile
from allranks.local import runner
def broken(observed):
    if len(list(Path(".").glob("up-*"))) == 3:
        raise RuntimeError("an internal error")
    return reconcile(observed)
runner.LocalRun.__init__.__kwdefaults__["reconcile"] = broken
runner._ERROR_GRACE = 0.1
runner.LocalRun._wait = lambda self, until: runner.asyncio.sleep(0.01)
sys.argv = ["allranks", "run", "job.yaml"]
from allranks.__main__ import main
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=cli.directory, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 1
    assert "RuntimeError: an internal error" in done.stderr


@pytest.mark.nightly
def test_under_nohup_a_hangup_is_ignored(cli: Cli) -> None:
    cli.job("sh", "-c", MEET)
    process = cli.start(preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    cli.wait_for_ranks()
    process.send_signal(signal.SIGHUP)
    (cli.directory / "go").touch()
    assert process.wait(SECONDS) == 0


def test_closing_the_output_ends_the_run(cli: Cli) -> None:
    cli.job("sh", "-c", "while :; do echo line; sleep 0.01; done")
    process = cli.start()
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(SECONDS) == 141
    assert process.stderr is not None
    assert process.stderr.read() == ""


# Output.


def test_dry_run_prints_the_same_pods_every_time_and_starts_nothing(cli: Cli) -> None:
    cli.job("sh", "-c", "touch started")
    one, two = cli.run("job.yaml", "--dry-run"), cli.run("job.yaml", "--dry-run")
    assert one.stdout == two.stdout
    pods = list(yaml.safe_load_all(one.stdout))
    assert [pod["metadata"]["name"] for pod in pods] == ["job-master-0-0", "job-worker-0-0", "job-worker-1-0"]
    assert sorted(path.name for path in cli.directory.iterdir()) == ["job.yaml"]


@pytest.mark.parametrize("output", ["json", "yaml"])
def test_stdout_is_only_the_status_and_messages_go_to_stderr(cli: Cli, output: str) -> None:
    cli.job("sh", "-c", "echo hello", roles={"worker": {}})
    done = cli.run("job.yaml", "-o", output)
    shown = json.loads(done.stdout) if output == "json" else yaml.safe_load(done.stdout)
    assert (shown["kind"], shown["metadata"]["name"]) == ("DistributedTraining", "job")
    assert shown["status"] == cli.status()
    assert "worker-0 | hello" in done.stderr


def test_quiet_prints_only_the_result_and_no_logs_hides_the_output_of_ranks(cli: Cli) -> None:
    cli.job("sh", "-c", "echo hello", roles={"worker": {}})
    (line,) = cli.run("job.yaml", "--quiet").stdout.splitlines()
    assert line.startswith("job Succeeded in ")
    shown = cli.run("job.yaml", "--no-logs").stdout
    assert "hello" not in shown
    assert "Pending, 0/1 pods running" in shown


def test_a_quiet_run_that_failed_says_why(cli: Cli) -> None:
    cli.job("torchrn", roles={"worker": {}})
    why = "torchrn is not on PATH of this machine: is your environment active?"
    [_, line, *_] = cli.run("job.yaml", "--quiet").stdout.splitlines()
    assert line == f"worker-0 could not be started (StartError): {why}"


def test_a_bad_manifest_is_rejected_with_every_error_and_its_path(cli: Cli) -> None:
    cli.job("true", roles={"worker": {"replicas": -1}, "boss": {}})
    done = cli.run()
    assert done.returncode == 2
    assert "spec.roles.worker.replicas" in done.stderr
    assert "spec.roles.boss" in done.stderr


@pytest.mark.nightly
def test_a_missing_volume_is_reported_before_anything_starts(cli: Cli) -> None:
    trainer = {"name": "trainer", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    volumes = [{"name": "data", "nfs": {"server": "s", "path": "/"}}]
    cli.job("true", template={"spec": {"containers": [trainer], "volumes": volumes}})
    done = cli.run()
    assert done.returncode == 2
    assert (
        done.stderr
        == "error: job: volume data (nfs) is not on this machine: give its directory with --volume data=DIR\n"
    )
    wrong = cli.run("job.yaml", "--volume", "date=.")
    assert wrong.returncode == 2
    assert "--volume date: no volume, claim, input or output has this name, did you mean data?" in wrong.stderr
    cli.job("true", file="none.yaml")  # only volumes that allranks adds to each pod
    wrong = cli.run("none.yaml", "--volume", "date=.")
    assert "--volume date: no volume, claim, input or output has this name; the jobs have no volumes" in wrong.stderr
    assert not (cli.directory / "runs").exists()


@pytest.mark.nightly
def test_a_suspended_job_ends_with_a_message(cli: Cli) -> None:
    cli.job("true", suspend=True)
    done = cli.run()
    assert done.returncode == 2
    assert "job is suspended (spec.suspend: true): add --set suspend=false to run it" in done.stdout
    assert not (cli.directory / "runs").exists()


def test_an_unwritable_run_directory_is_one_line_of_error(cli: Cli) -> None:
    cli.job("true")
    (cli.directory / "file").touch()
    done = cli.run("job.yaml", "--run-dir", "file/below")
    assert (done.returncode, done.stderr) == (
        2,
        "error: the run directory file/below cannot be created: not a directory\n",
    )


def test_runs_that_start_in_the_same_second_have_different_directories(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    reserved: list[Path] = []
    paths = [run_directories.reserve_directory("job", reserved) for _ in range(3)]
    assert len(set(paths)) == 3
    assert reserved == paths
    assert all(path.is_dir() for path in paths)
    run_directories.remove_empty(reserved)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.nightly
def test_a_run_that_does_not_start_leaves_no_directory(cli: Cli) -> None:
    cli.job("true")
    done = cli.run("job.yaml", "--volume", "nosuch=.")
    assert (done.returncode, (cli.directory / "runs").exists()) == (2, False)
    refused = {"name": "model", "to": "claim://models/penguins", "path": "/model"}
    cli.job("true", name="refused", file="refused.yaml", outputs=[refused])
    done = cli.run("refused.yaml", "--volume", "models=/dev/null")
    assert "error: spec.outputs[0] (model): the output cannot be uploaded" in done.stderr
    assert (done.returncode, (cli.directory / "runs").exists()) == (2, False)


def test_jobs_run_one_after_the_other_and_other_kinds_are_named(cli: Cli) -> None:
    cli.job("sh", "-c", "echo first >> order", name="first", roles={"worker": {}})
    with (cli.directory / "job.yaml").open("a") as out:
        out.write("---\nkind: PersistentVolumeClaim\napiVersion: v1\nmetadata: {name: weights}\n")
    cli.job("sh", "-c", "cat order", name="second", roles={"worker": {}})
    done = cli.run()
    assert done.returncode == 0
    assert "note: PersistentVolumeClaim weights is not used here" in done.stdout
    assert "worker-0 | first" in done.stdout


def test_after_a_failed_job_the_next_jobs_do_not_run(cli: Cli) -> None:
    cli.job("false", name="first", roles={"worker": {}}, restart={"maxRestarts": 0})
    cli.job("touch", "ran", name="second", roles={"worker": {}})
    done = cli.run()
    assert done.returncode == 1
    assert "not run: second" in done.stdout
    assert not (cli.directory / "ran").exists()


def test_a_manifest_comes_from_standard_input_too(cli: Cli) -> None:
    cli.job("sh", "-c", "echo $RANK")
    text = (cli.directory / "job.yaml").read_text()
    done = cli.run("-", "--set", "roles.worker.replicas=1", stdin=text)
    assert done.returncode == 0
    assert "(2 pods, no restarts)" in done.stdout


@pytest.mark.nightly
def test_a_rank_that_prints_much_loses_nothing_in_its_log(cli: Cli) -> None:
    program = "import os, sys\nfor n in range(100_000): print('line', n)\nopen('up-' + os.environ['RANK'], 'w').close()"
    cli.job(sys.executable, "-c", program, roles={"worker": {"replicas": 2}})
    done = cli.run()
    assert done.returncode == 0
    expected = "".join(f"line {n}\n" for n in range(100_000))
    assert cli.log("job-worker-0-0") == expected
    assert cli.log("job-worker-1-0") == expected
    assert "worker-1 | line 99999" in done.stdout


def test_on_a_terminal_the_summary_is_live_and_colors_can_be_turned_off(cli: Cli) -> None:
    cli.job("sh", "-c", f"printf '\\033[31mred\\033[0m\\n'; {UNTIL_GO}")

    def screen(*arguments: str) -> str:
        ours, theirs = pty.openpty()
        process = cli.start("job.yaml", *arguments, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        text = b""
        with contextlib.suppress(OSError):  # EIO: the other side is closed
            while data := os.read(ours, 4096):
                text += data
                if b"3/3 pods running" in text:
                    (cli.directory / "go").touch()
        os.close(ours)
        assert process.wait(SECONDS) == 0
        return text.decode()

    colourful = screen()
    assert "\x1b[36mmaster-0 |\x1b[0m \x1b[31mred\x1b[0m" in colourful
    assert "3/3 pods running" in colourful
    (cli.directory / "go").unlink()
    plain = screen("--no-color")
    assert "master-0 | red\r\n" in plain
    assert "\x1b[36m" not in plain
    assert "\x1b[31m" not in plain


@pytest.mark.nightly
def test_the_ranks_of_a_run_print_their_stacks_when_another_process_asks(cli: Cli) -> None:
    program = (
        "import time; from allranks.report import report; report(step=1); open('up-1', 'w').close(); time.sleep(600)"
    )
    cli.job(sys.executable, "-c", program, roles={"worker": {}})
    process = cli.start()
    assert process.stdout
    try:
        cli.wait_for_ranks(1)
        [folder] = cli.directory.glob("runs/job/[0-9]*")
        request = rank_reports.new_stack_request(0, datetime.now(UTC), 7)
        run_directories.request_stacks(folder, request)
        for line in process.stdout:
            if f"stacks, asked for because somebody requested them ({request})" in line:
                break
        else:
            raise AssertionError("the rank has not answered")
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=SECONDS)


ALONE = """
import os, subprocess, sys
alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
sys.exit(subprocess.call([sys.executable, "-c", "print('trains')"], env={**os.environ, **alone}))
"""


def test_pods_that_a_launcher_of_the_program_lets_train_alone_are_said_at_the_end(cli: Cli) -> None:
    cli.job(sys.executable, "-c", ALONE, roles={"worker": {"replicas": 2}})
    done = cli.run()
    assert done.returncode == 0, done.stderr
    sentence = "worker-0 and worker-1 have a rank 0 each: they are 2 independent copies that do not train together"
    [summary] = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("job Succeeded in ")]
    assert summary.endswith(sentence)


def test_pods_whose_ranks_have_numbers_of_their_own_are_no_copies(cli: Cli) -> None:
    cli.job(
        sys.executable, "-c", "from allranks.report import report; report(step=1)", roles={"worker": {"replicas": 2}}
    )
    done = cli.run()
    assert done.returncode == 0, done.stderr
    assert "copies" not in done.stdout + done.stderr
