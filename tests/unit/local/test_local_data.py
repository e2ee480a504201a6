"""`allranks run` with inputs and outputs: real processes, a web server and an S3 server."""

from __future__ import annotations

import hashlib
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

from allranks.local.run_directories import StoredRun
from support.builders import manifest
from support.data_servers import Behaviour, http_server, s3_environment, s3_server

SECONDS = 300.0
EXAMPLES = Path(__file__).parents[3] / "examples" / "data"
TRAIN = """
import os, pathlib
data = pathlib.Path(os.environ["ALLRANKS_INPUT_DATA"])
text = (data / "train.csv").read_text()
rank = os.environ["ALLRANKS_INDEX"]
print("read", text, "from", data, flush=True)
(pathlib.Path(os.environ["ALLRANKS_OUTPUT_MODEL"]) / f"rank-{rank}.txt").write_text(text.upper())
"""


@pytest.fixture
def web():
    return Behaviour(files={"/train.csv": b"penguins"})


@pytest.fixture
def url(web):
    with http_server(web) as found:
        yield found


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


def write(folder: Path, **spec: object) -> None:
    job = manifest("spmd", **{"command": [sys.executable, "train.py"], "restart": {"maxRestarts": 0}, **spec})
    (folder / "job.yaml").write_text(yaml.safe_dump(job))


def start(folder: Path, *words: str, **environ: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "allranks", "run", "job.yaml", "--run-dir", "run", *words]
    env = {**os.environ, "ALLRANKS_CACHE": str(folder / "cache"), "HOME": str(folder), **environ}
    return subprocess.Popen(
        command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def run(folder: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    process = start(folder, *words, **environ)
    out, err = process.communicate(timeout=SECONDS)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def status(folder: Path) -> dict:
    return json.loads((folder / "run" / "job.json").read_text())["status"]


def data(url: str, **fields: str) -> dict[str, str]:
    return {"name": "data", "from": f"{url}/train.csv", "path": "/data", **fields}


MODEL = {"name": "model", "path": "/out", "to": "claim://models/penguins"}


def test_ranks_read_an_input_and_the_output_is_copied_with_its_provenance(project, web, url) -> None:
    write(project, inputs=[data(url)], outputs=[MODEL])
    first = run(project, "--volume", f"models={project}/models")
    assert first.returncode == 0, first.stdout + first.stderr
    link = project / "run" / "inputs" / "data"
    assert f"worker-1 | read penguins from {link}" in first.stdout
    assert "input data was fetched in" in first.stdout
    report = subprocess.run(
        [sys.executable, "-m", "allranks", "report", "--run-dir", "run"], cwd=project, capture_output=True, text=True
    )
    assert report.stdout.splitlines()[0] in first.stdout.splitlines(), "one duration everywhere"
    model = project / "models" / "penguins"
    assert (model / "rank-0.txt").read_text() == "PENGUINS"
    listed = json.loads((model / "allranks-manifest.json").read_text())
    assert [(file["name"], file["sha256"]) for file in listed["files"]] == [
        (f"rank-{number}.txt", hashlib.sha256(b"PENGUINS").hexdigest()) for number in range(2)
    ]
    [found] = status(project)["inputs"]
    assert (found["state"], found["sha256"]) == ("Ready", hashlib.sha256(b"penguins").hexdigest())
    [uploaded] = status(project)["outputs"]
    assert (uploaded["state"], uploaded["files"], uploaded["bytes"]) == ("Uploaded", 2, 16)
    source = json.loads((model / "allranks-provenance.json").read_text())
    assert source["inputs"] == [
        {
            "name": "data",
            "from": f"{url}/train.csv",
            "revision": found["revision"],
            "sha256": found["sha256"],
            "bytes": 8,
        }
    ]
    assert source["programs"]["worker"]["command"][-1] == "train.py"
    web.requests.clear()
    again = run(project, "--volume", f"models={project}/models")
    assert again.returncode == 0, again.stdout + again.stderr
    assert "input data was in the cache" in again.stdout
    assert len(web.requests) == 1


def test_a_directory_takes_the_place_of_an_input_and_of_a_destination(project) -> None:
    (project / "mine").mkdir()
    (project / "mine" / "train.csv").write_text("gulls")
    write(
        project,
        inputs=[{"name": "data", "from": "claim://birds/2026", "path": "/data"}],
        outputs=[{**MODEL, "to": "s3://b/m"}],
    )
    missing = run(project)
    assert missing.returncode == 2
    message = "spec.inputs[0].from: claim birds is not on this machine: give a directory with its files, --volume data="
    assert message in missing.stderr
    done = run(project, "--volume", "data=mine", "--volume", "model=kept")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (project / "kept" / "rank-1.txt").read_text() == "GULLS"
    stored = json.loads((project / "run" / "job.json").read_text())
    assert stored["spec"]["outputs"][0]["to"] == f"file://{project}/kept"
    said = {each["type"]: each["message"] for each in stored["status"]["conditions"]}["OutputsUploaded"]
    assert said == f"model is in file://{project}/kept: 2 files, 10 B"


def test_a_claim_with_a_directory_in_it(project) -> None:
    (project / "claims" / "2026").mkdir(parents=True)
    (project / "claims" / "2026" / "train.csv").write_text("gulls")
    write(project, inputs=[{"name": "data", "from": "claim://birds/2026", "path": "/data"}], outputs=[MODEL])
    done = run(project, "--volume", "birds=claims")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (project / "run" / "volumes" / "models" / "penguins" / "rank-1.txt").read_text() == "GULLS"


def test_an_input_that_cannot_be_fetched_starts_nothing(project, web, url) -> None:
    write(project, inputs=[data(url, sha256="0" * 64)])
    done = run(project)
    assert done.returncode == 2, done.stdout + done.stderr
    assert (
        f"error: spec.inputs[0] (data): the input cannot be fetched: {url}/train.csv: the SHA-256 of the file is "
        in done.stderr
    )
    assert not (project / "run").exists()


def until(process: subprocess.Popen[str], text: str) -> str:
    """The first line with this text; the run is stopped then."""
    try:
        assert process.stdout
        found = next((line for line in process.stdout if text in line), "")
        os.kill(process.pid, signal.SIGINT)
        process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    return found


def test_the_screen_says_that_a_fetch_is_tried_again(project) -> None:
    write(project, inputs=[{"name": "data", "from": "http://127.0.0.1:1/train.csv", "path": "/data"}])
    line = until(start(project), "more tries follow")
    assert "spec.inputs[0] (data): http://127.0.0.1:1/train.csv: the server cannot be reached: " in line
    assert re.search(r"; up to 5 more tries follow, for about \d+ (s|min)$", line.rstrip())


@pytest.mark.nightly
def test_the_screen_says_that_an_upload_is_tried_again(project) -> None:
    write(project, command=["sh", "-c", "touch $ALLRANKS_OUTPUT_MODEL/x"], outputs=[{**MODEL, "to": "s3://models/m"}])
    environ = {**s3_environment("http://127.0.0.1:1"), "AWS_MAX_ATTEMPTS": "1"}
    line = until(start(project, **environ), "more tries follow")
    assert "spec.outputs[0] (model): s3://models/m: the connection failed: " in line


def test_ctrl_c_ends_a_fetch(project, web, url) -> None:
    web.gate = threading.Event()
    write(project, inputs=[data(url)])
    process = start(project)
    try:
        assert process.stdout
        for line in process.stdout:
            if "input data is fetched" in line:
                break
        assert StoredRun(project / "run").phase == "Pending"
        os.kill(process.pid, signal.SIGINT)
        rest, _ = process.communicate(timeout=SECONDS)
        assert process.returncode == 130
        assert ", before its ranks started\n" in rest
        assert "Report:" not in rest
        assert not (project / "run").exists()
    finally:
        process.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent has died")
def test_a_fetch_ends_with_a_run_that_is_killed(project, web, url) -> None:
    web.gate = threading.Event()
    write(project, inputs=[data(url)])
    process = start(project)
    try:
        assert process.stdout
        for line in process.stdout:
            if "input data is fetched" in line:
                break
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        fetches = [pid for pid in children if b"allranks.data.program" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        assert fetches
        ends = [os.pidfd_open(int(pid)) for pid in fetches]
    finally:
        process.kill()
        process.communicate(timeout=SECONDS)
    for end in ends:
        ready, _, _ = select.select([end], [], [], SECONDS)
        os.close(end)
        assert ready
    killed = StoredRun(project / "run")
    assert killed.phase == "Interrupted"
    assert killed.started  # so `allranks runs prune` removes it
    assert killed.ended


def test_ctrl_c_during_an_upload_says_where_the_files_are(project) -> None:
    begun = b"<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>"
    server = Behaviour(puts=threading.Event())
    server.answers["/models/out/allranks-write-check"] = lambda _: (200, {}, begun)
    write(project, command=["true"], outputs=[{**MODEL, "to": "s3://models/out"}])
    (project / "run" / "outputs" / "model").mkdir(parents=True)
    (project / "run" / "outputs" / "model" / "weights").write_text("x")
    with http_server(server) as silent:
        process = start(project, **s3_environment(silent))
        try:
            assert process.stdout
            for line in process.stdout:
                if "its outputs are uploaded" in line:
                    break
            os.kill(process.pid, signal.SIGINT)
            out, err = process.communicate(timeout=SECONDS)
        finally:
            process.kill()
    assert process.returncode == 130, out + err
    assert (
        "Ctrl-C: no rank runs, so the run stops\n" in out or "Ctrl-C: SIGTERM to 1 pods" in out
    )  # or its pod just ended
    assert "output model is not uploaded: its upload was interrupted" in out
    assert f"the files are in {project}/run/outputs/model" in out
    assert status(project)["outputs"][0]["state"] == "Failed"


FAILS = 'import os; open(os.environ["ALLRANKS_OUTPUT_MODEL"] + "/log", "w").write("x"); raise SystemExit(3)'


@pytest.mark.parametrize(("when", "state"), [("Always", "Uploaded"), ("Success", "Pending")])
def test_the_output_of_a_failed_job(project, when, state) -> None:
    write(project, command=[sys.executable, "-c", FAILS], outputs=[{**MODEL, "when": when}])
    done = run(project, "--volume", f"models={project}/models")
    assert done.returncode == 1
    assert status(project)["phase"] == "Failed"
    assert status(project)["outputs"][0]["state"] == state
    assert (project / "models" / "penguins" / "log").exists() == (when == "Always")


def test_a_program_that_writes_no_output_fails(project) -> None:
    write(project, command=["true"], outputs=[MODEL])
    done = run(project)
    assert done.returncode == 1
    complete = {condition["type"]: condition for condition in status(project)["conditions"]}["Failed"]
    assert complete["reason"] == "OutputFailed"
    assert "output model is not uploaded: " in complete["message"]
    assert "the program wrote no file into" in complete["message"]


def test_a_destination_that_cannot_be_written_starts_nothing(project, web, url) -> None:
    write(project, inputs=[data(url)], outputs=[{**MODEL, "to": "s3://nowhere/m"}])
    web.gate = threading.Event()  # the input is not there before the check
    with s3_server() as store:
        done = run(project, **s3_environment(store))
    assert done.returncode == 2, done.stdout + done.stderr
    assert "error: spec.outputs[0] (model): the output cannot be uploaded: s3://nowhere/m: " in done.stderr
    assert "worker-0" not in done.stdout
    assert not (project / "run").exists()


def test_a_destination_that_does_not_answer_is_a_warning(project) -> None:
    write(project, command=["true"], outputs=[{**MODEL, "to": "s3://models/m"}], restart={"maxRestarts": 0})
    done = run(project, **s3_environment("http://127.0.0.1:1"), AWS_MAX_ATTEMPTS="1")
    warning = (
        "spec.outputs[0] (model): it is not certain that the output can be uploaded: s3://models/m: the connection"
    )
    assert warning in done.stdout
    assert done.returncode == 1
    assert "output model is not uploaded: s3://models/m: there is nothing to upload" in done.stdout


@pytest.mark.nightly
@pytest.mark.parametrize("when", ["Success", "Always"])
def test_an_upload_that_takes_longer_than_its_deadline_is_ended(project, when) -> None:
    fields = {"to": "s3://models/out", "deadlineSeconds": 1, "when": when}
    program = "true" if when == "Success" else "false"
    begun = b"<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>"
    server = Behaviour(puts=threading.Event())
    server.answers["/models/out/allranks-write-check"] = lambda _: (200, {}, begun)
    write(project, command=[program], outputs=[{**MODEL, **fields}])
    (project / "run" / "outputs" / "model").mkdir(parents=True)
    (project / "run" / "outputs" / "model" / "weights").write_text("x")
    with http_server(server) as silent:
        done = run(project, **s3_environment(silent))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "output model is not uploaded: not within deadlineSeconds (1); the files are in" in done.stdout
    assert status(project)["outputs"][0]["state"] == "Failed"


def bucket(url: str, name: str) -> Any:
    """A client of the server, which has an empty bucket."""
    import boto3

    keys = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing", "region_name": "us-east-1"}
    client = boto3.client("s3", endpoint_url=url, **keys)
    client.create_bucket(Bucket=name)
    return client


@pytest.mark.nightly
def test_code_in_a_bucket_runs_as_the_guide_says(project) -> None:
    """The manifest of docs/guides/code.md, with the Python of this test."""
    page = (Path(__file__).parents[3] / "docs" / "guides" / "code.md").read_text()
    [text] = [block for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if "s3://" in block]
    job = manifest("spmd")
    job["spec"].pop("command", None)
    job["spec"] |= yaml.safe_load(text)["spec"]
    job["spec"]["command"] = [sys.executable, *job["spec"]["command"][1:]]
    (project / "job.yaml").write_text(yaml.safe_dump(job))
    (project / "train.py").unlink()
    with s3_server() as url:
        client = bucket(url, "code")
        for number, text in ((7, "seven"), (8, "eight")):
            root = f"birds/{number}"
            client.put_object(Bucket="code", Key=f"{root}/train.py", Body=b"import net.model as m; print(m.NAME)")
            client.put_object(Bucket="code", Key=f"{root}/net/__init__.py", Body=b"")
            client.put_object(Bucket="code", Key=f"{root}/net/model.py", Body=f"NAME = {text!r}".encode())
        env = s3_environment(url)
        done = run(project, **env)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "worker-1 | seven" in done.stdout
        [found] = status(project)["inputs"]
        assert found["revision"].startswith("list:")
        done = run(project, "--set", "inputs[0].from=s3://code/birds/8", **env)
        assert "worker-1 | eight" in done.stdout, done.stdout + done.stderr
        client.close()


SAVES = """
import os, pathlib, sys, time
sys.path.insert(0, sys.argv[1])
from support import s3_object
from allranks.report import report
folder = pathlib.Path(os.environ["ALLRANKS_CHECKPOINT_DIR"])
for step in (10, 20):
    (folder / f"checkpoint-{step}").mkdir(parents=True)
    (folder / f"checkpoint-{step}" / "weights").write_text(f"weights {step}")
    report(step=step, total_steps=20, checkpoint=True)
    while step == 10 and not s3_object.exists("models", "saved/step-10/allranks-manifest.json"):
        time.sleep(0.1)
    if step == 10:
        (folder / "checkpoint-10" / "weights").unlink()
"""


def test_an_s3_server_has_a_checkpoint_while_the_program_runs_and_the_last_one_when_the_job_succeeds(project) -> None:
    """The program continues when its first checkpoint is there."""
    output = {"name": "saved", "path": "/checkpoints", "to": "s3://models/saved", "when": "Checkpoint"}
    with s3_server() as url:
        client = bucket(url, "models")
        write(
            project,
            command=[sys.executable, "-c", SAVES, str(Path(__file__).parents[2])],
            roles={"worker": {"replicas": 1}},
            outputs=[output],
            checkpoint={"claim": "own"},
            progress={},
        )
        done = run(project, **s3_environment(url))
        assert done.returncode == 0, done.stdout + done.stderr
        listed = [each["Key"] for each in client.list_objects_v2(Bucket="models", Prefix="saved/")["Contents"]]
        client.close()
    files = ["allranks-manifest.json", "allranks-provenance.json"]
    assert listed == [
        f"saved/step-{step}/{name}" for step in (10, 20) for name in (*files, f"checkpoint-{step}/weights")
    ]
    [found] = status(project)["outputs"]
    assert (found["state"], found["step"], found["uploadedStep"]) == ("Uploaded", 20, 20)
    assert "output saved: the checkpoint of step 10 is uploaded" in done.stdout
    assert list((project / "run" / "outputs" / "saved").iterdir()) == []


@pytest.mark.nightly
def test_the_example_with_checkpoints_leaves_those_that_are_uploaded_complete(project) -> None:
    """It runs as its first lines say, with the Python of this test."""
    shutil.copy(EXAMPLES / "checkpoints.py", project / "checkpoints.py")
    job = yaml.safe_load((EXAMPLES / "checkpoints.yaml").read_text())
    job["spec"]["command"][0] = sys.executable
    (project / "job.yaml").write_text(yaml.safe_dump(job))
    done = run(project, "--volume", f"saved={project}/saved")
    assert done.returncode == 0, done.stdout + done.stderr
    steps = {}
    for found in (project / "saved").glob("*/allranks-manifest.json"):
        [listed] = json.loads(found.read_text())["files"]
        content = (found.parent / listed["name"]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == listed["sha256"]
        steps[found.parent.name] = json.loads(content)["step"]
    assert steps["step-100"] == 100  # a slow machine may leave out earlier ones
    assert all(name == f"step-{step}" for name, step in steps.items())
    [found] = status(project)["outputs"]
    assert (found["state"], found["uploadedStep"]) == ("Uploaded", 100)


@pytest.mark.nightly
def test_an_s3_server_has_the_output_when_the_job_succeeds_and_gives_it_to_the_next_job(project) -> None:
    with s3_server() as url:
        env = s3_environment(url)
        client = bucket(url, "models")
        client.put_object(Bucket="models", Key="in/train.csv", Body=b"terns")
        inputs = [{"name": "data", "from": "s3://models/in", "path": "/data", "secret": "s3"}]
        write(project, inputs=inputs, outputs=[{**MODEL, "to": "s3://models/out"}])
        done = run(project, **env)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "note: secret s3 is not used here: your own credentials fetch input data" in done.stdout
        listed = client.list_objects_v2(Bucket="models", Prefix="out/")["Contents"]
        client.close()
    names = ["allranks-manifest.json", "allranks-provenance.json", "rank-0.txt", "rank-1.txt"]
    assert [found["Key"] for found in listed] == [f"out/{name}" for name in names]


@pytest.mark.nightly
def test_the_example_streams_from_an_s3_server_without_a_copy(project) -> None:
    job = yaml.safe_load((EXAMPLES / "stream.yaml").read_text())
    del job["spec"]["packages"]  # s3fs is there
    job["spec"]["command"] = [sys.executable, str(EXAMPLES / "stream.py")]
    del job["spec"]["code"]
    (project / "job.yaml").write_text(yaml.safe_dump(job))
    with s3_server() as url:
        env = s3_environment(url)
        client = bucket(url, "birds")
        client.put_object(Bucket="birds", Key="tables/README.md", Body=b"Not a table.\n")
        for number, species in enumerate(["Adelie", "Gentoo", "Chinstrap"]):
            client.put_object(Bucket="birds", Key=f"tables/{number}.csv", Body=f"species\n{species}\n".encode())
        done = run(project, **env)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "note: input data is not copied: the program reads s3://birds/tables" in done.stdout
        assert "worker-0 | 2 of 3 tables: {'Adelie': 1, 'Chinstrap': 1}" in done.stdout
        assert "worker-1 | 1 of 3 tables: {'Gentoo': 1}" in done.stdout
        [found] = status(project)["inputs"]
        assert (found["state"], found["bytes"]) == ("Ready", 61)
        assert not (project / "cache" / "inputs").exists()
        client.put_object(Bucket="birds", Key="tables/3.csv", Body=b"species\nGentoo\n")
        other = run(project, "--set", f"inputs[0].revision={found['revision']}", **env)
        assert other.returncode == 2
        assert "the data was changed: its revision is list:" in other.stderr
        client.close()


def test_a_directory_takes_the_place_of_an_input_that_is_streamed(project) -> None:
    (project / "mine").mkdir()
    (project / "mine" / "train.csv").write_text("species\nGentoo\n")
    inputs = [{"name": "data", "from": "s3://birds/tables", "mode": "Stream", "secret": "s3"}]
    write(project, command=[sys.executable, str(EXAMPLES / "stream.py")], inputs=inputs)
    done = run(project, "--volume", "data=mine")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 of 1 tables: {'Gentoo': 1}" in done.stdout
