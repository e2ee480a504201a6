"""The examples of pipelines: Airflow and Prefect from their packages, a real API server, and ranks that are processes.

Each shows the root cause, finds the job of its first try when it is retried, and deletes the job when it is cancelled.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support import live, tools
from support.controlplane import ControlPlane, free_ports
from support.process_kubelet import process_kubelet

pytestmark = [pytest.mark.cluster, pytest.mark.nightly, pytest.mark.timeout(900)]

EXAMPLES = Path(__file__).parents[2] / "examples" / "pipelines"
GOOD = "print('the weights are stored')"
BAD = "raise LookupError('no data in shard 7')"
LONG = "import time; print('begins', flush=True); time.sleep(600)"


class Pipeline:
    """A namespace with an operator and a node, and the environment of a worker of a pipeline."""

    def __init__(self, control_plane: ControlPlane, namespace: str, folder: Path) -> None:
        self.control_plane, self.namespace, self.folder = control_plane, namespace, folder
        self.environ = {
            "HOME": str(folder),
            "KUBECONFIG": str(control_plane.kubeconfig),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }

    def manifest(self, program: str) -> Path:
        spec = {
            "framework": "spmd",
            "image": "example.org/python:3",
            "command": ["python3", "-c", program],
            "restart": {"maxRestarts": 0},
            "roles": {"worker": {"replicas": 2}},
        }
        metadata = {"name": "replaced", "namespace": self.namespace}
        job = {"apiVersion": "allranks.dev/v1alpha1", "kind": "DistributedTraining", "metadata": metadata, "spec": spec}
        (self.folder / "job.yaml").write_text(json.dumps(job))
        return self.folder / "job.yaml"

    def jobs(self) -> list[dict[str, Any]]:
        return self.control_plane.api.list("DistributedTraining", self.namespace)

    def start(self, *command: str | Path) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder,
            env=self.environ,
        )

    def runs(self) -> bool:
        return [job["status"]["phase"] for job in self.jobs() if "status" in job] == ["Running"]

    def finish(self, process: subprocess.Popen[str], answer: str | None = None) -> str:
        """Return what it prints until its end."""
        try:
            return process.communicate(answer, timeout=600)[0]
        finally:
            process.kill()


@pytest.fixture
def pipeline(control_plane: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[Pipeline]:
    [port] = free_ports(1)
    url = f"http://127.0.0.1:{port}/v1/report"
    connection = live.connection(control_plane)
    (tmp_path / "node").mkdir()
    with (
        live.operator(connection, namespace, report_url=url, report_port=port, pools=False),
        process_kubelet(control_plane, namespace, tmp_path / "node"),
    ):
        yield Pipeline(control_plane, namespace, tmp_path)


def check_success(pipeline: Pipeline, log: str) -> None:
    [job] = pipeline.jobs()
    assert job["status"]["phase"] == "Succeeded"
    assert "the weights are stored" in log


def check_failure(pipeline: Pipeline, log: str) -> None:
    """Three tries have one job with one attempt, and each shows why it failed."""
    [job] = pipeline.jobs()
    assert (job["status"]["phase"], job["status"].get("attempt", 0)) == ("Failed", 0)
    assert len(re.findall("LookupError: no data in shard 7", log)) >= 3


# --- Prefect --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def prefect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The variables of a worker of Prefect whose server runs here."""
    folder, [port] = tmp_path_factory.mktemp("prefect"), free_ports(1)
    environ = {"PREFECT_HOME": str(folder), "PREFECT_API_URL": f"http://127.0.0.1:{port}/api"}
    python = tools.built("packages.sh", "prefect") / "bin" / "python"
    command = [python, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | environ)
    try:
        live.eventually(lambda: is_healthy(f"{environ['PREFECT_API_URL']}/health"), 300)
        yield environ
    finally:
        server.terminate()
        server.wait(120)


def is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.status == 200
    except OSError:
        return False


@pytest.fixture
def start_flow(pipeline: Pipeline, prefect_server: dict[str, str]) -> Callable[[str], subprocess.Popen[str]]:
    pipeline.environ |= prefect_server
    python = tools.built("packages.sh", "prefect") / "bin" / "python"
    return lambda program: pipeline.start(python, EXAMPLES / "prefect_flow.py", pipeline.manifest(program))


@pytest.mark.parametrize(("program", "check"), [(GOOD, check_success), (BAD, check_failure)], ids=["good", "bad"])
def test_a_flow_of_prefect_trains_once(pipeline: Pipeline, start_flow: Any, program: str, check: Any) -> None:
    process = start_flow(program)
    log = pipeline.finish(process)
    assert (process.returncode == 0) == (program == GOOD), log
    check(pipeline, log)


def test_a_flow_of_prefect_that_is_cancelled_deletes_its_job(pipeline: Pipeline, start_flow: Any) -> None:
    process = start_flow(LONG)
    live.eventually(pipeline.runs, 600)
    process.terminate()  # as a worker of Prefect does
    log = pipeline.finish(process)
    assert process.returncode, log
    live.eventually(lambda: pipeline.jobs() == [], 300)


# --- Airflow --------------------------------------------------------------------------------------------------------


@pytest.fixture
def airflow(pipeline: Pipeline) -> Path:
    """The program of Airflow, with a database and the example as its only DAG."""
    program = tools.built("packages.sh", "airflow") / "bin" / "airflow"
    pipeline.environ |= {
        "AIRFLOW_HOME": str(pipeline.folder / "airflow"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(EXAMPLES),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DEFAULT_TASK_RETRY_DELAY": "1",
    }
    subprocess.run([program, "db", "migrate"], check=True, capture_output=True, timeout=600, env=pipeline.environ)
    return program


@pytest.mark.parametrize(("program", "check"), [(GOOD, check_success), (BAD, check_failure)], ids=["good", "bad"])
def test_a_dag_of_airflow_trains_once(pipeline: Pipeline, airflow: Path, program: str, check: Any) -> None:
    conf = json.dumps({"manifest": str(pipeline.manifest(program))})
    file = EXAMPLES / "airflow_dag.py"
    check(pipeline, pipeline.finish(pipeline.start(airflow, "dags", "test", "train", "-c", conf, "-f", file)))


CANCEL = """
import sys, threading
sys.path.insert(0, sys.argv[1])
from airflow_dag import dag
task = dag.get_task("train")
task.bash_command = sys.argv[2]
thread = threading.Thread(target=task.execute, args=({},))
thread.start()
sys.stdin.readline()
task.on_kill()
thread.join()
"""


def test_a_task_of_airflow_that_is_cancelled_deletes_its_job(pipeline: Pipeline, airflow: Path) -> None:
    """`on_kill` is what Airflow calls then."""
    command = f"exec allranks submit {pipeline.manifest(LONG)} --logs --attach --set metadata.name=train-1"
    process = pipeline.start(airflow.parent / "python", "-c", CANCEL, EXAMPLES, command)
    live.eventually(pipeline.runs, 600)
    log = pipeline.finish(process, answer="\n")
    assert "train-1 is deleted" in log
    live.eventually(lambda: pipeline.jobs() == [], 300)
