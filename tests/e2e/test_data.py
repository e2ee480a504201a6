"""Inputs, outputs and resumeFrom in real pods: an S3 server, a web server, and claims."""

from __future__ import annotations

import ast
import json
import threading
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest
import yaml

from support.data_servers import Behaviour, http_server, s3_environment, s3_server
from support.store_servers import (
    azure_environment,
    azure_server,
    gcs_environment,
    gcs_server,
    google_key,
    token_answer,
)

from .cluster import REPOSITORY, Cluster
from .command_line import output
from .jobs import Team, claim_of, example, image, of_tests, training
from .release import DATA_CLAIM
from .watching import PodWatch, watched

pytestmark = pytest.mark.nightly
TABLE = REPOSITORY / "train" / "data" / "penguins.csv"


@pytest.fixture
def s3(cluster: Cluster, team: Team, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The client of an S3 server with the table of the example; its variables are the Secret s3 of the namespace."""
    import boto3

    with s3_server(cluster.our_address) as url:
        for name, value in (variables := s3_environment(url)).items():
            monkeypatch.setenv(name, value)
        team.kubectl("create", "secret", "generic", "s3", *(f"--from-literal={k}={v}" for k, v in variables.items()))
        client = boto3.client("s3")
        for bucket in ("birds", "models"):
            client.create_bucket(Bucket=bucket)
        client.upload_file(str(TABLE), "birds", "penguins/penguins.csv")
        yield client
        client.close()


def read(s3: Any, key: str) -> Any:
    return json.loads(s3.get_object(Bucket="models", Key=key)["Body"].read())


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def ended(watch: PodWatch, pod: str) -> datetime:
    """When the main container of the pod ended."""
    states = [c["state"] for status in watch.states(pod) for c in status.get("containerStatuses", ())]
    return moment([state["terminated"]["finishedAt"] for state in states if "terminated" in state][-1])


def created(watch: PodWatch, pod: str) -> datetime:
    return next(
        moment(found["metadata"]["creationTimestamp"]) for _, found in watch.events if found["metadata"]["name"] == pod
    )


def test_the_example_reads_its_input_from_s3_and_uploads_its_output(team: Team, s3: Any, tmp_path: Path) -> None:
    """The input is fetched before a rank exists, and the output is uploaded after the last rank has ended."""
    team.kubectl("apply", "-f", "-", input=json.dumps(claim_of(DATA_CLAIM)))
    folder = REPOSITORY / "examples" / "data"
    job = tmp_path / "job.yaml"
    job.write_text(of_tests((folder / "penguins.yaml").read_text()))
    with_secret = ("--set", "inputs[0].secret=s3", "--set", "outputs[0].secret=s3")
    with watched(team) as watch:
        output(team, "submit", str(job), "--code", str(folder), *with_secret)
        status = team.completes("penguins-data")
    [fetched], [uploaded] = status["inputs"], status["outputs"]
    assert (fetched["state"], fetched["bytes"]) == ("Ready", TABLE.stat().st_size)
    assert (uploaded["state"], uploaded["files"]) == ("Uploaded", 2)
    ranks = [f"penguins-data-worker-{index}-0" for index in (0, 1)]
    fetch, upload = "penguins-data-fetch-data", "penguins-data-upload-model"
    assert all(created(watch, rank) >= ended(watch, fetch) for rank in ranks)
    assert all(created(watch, upload) >= ended(watch, rank) for rank in ranks)
    assert ended(watch, upload) <= moment(status["completionTime"])
    begin = moment(status["startTime"])
    for what, end in (("fetched", ended(watch, fetch)), ("ranks ended", max(ended(watch, rank) for rank in ranks))):
        print(f"{what} after {(end - begin).total_seconds():.0f} s")
    print(f"succeeded after {(moment(status['completionTime']) - begin).total_seconds():.0f} s")
    assert {file["name"] for file in read(s3, "penguins/allranks-manifest.json")["files"]} >= {"rank-0.json"}
    assert read(s3, "penguins/rank-1.json")["Gentoo"] > 4000
    made_of = json.dumps(read(s3, "penguins/allranks-provenance.json"))
    assert fetched["revision"] in made_of
    # A second job finds the input in the claim: without the Secret it could not read the bucket.
    again = training("again", "sh", "-c", "ls -l /data; ! touch /data/here")
    source = {"name": "data", "from": "s3://birds/penguins", "path": "/data", "revision": fetched["revision"]}
    again[0]["spec"]["inputs"] = [source]
    team.completes(team.start(again))
    assert "penguins.csv" in team.kubectl("logs", "again-master-0-0")


def test_a_connection_that_breaks_is_tried_again_and_a_wrong_sum_starts_no_rank(team: Team, cluster: Cluster) -> None:
    team.kubectl("apply", "-f", "-", input=json.dumps(claim_of(DATA_CLAIM)))
    content = bytes(range(256)) * 4096
    web = Behaviour(files={"/table": content}, cut_after=300_000, cuts=2, failures=[503])
    with http_server(web, cluster.our_address) as url, watched(team) as watch:
        source = {"name": "table", "from": f"{url}/table", "path": "/data"}
        size = "test $(stat -c %s /data/table) = 1048576"
        team.completes(team.start(training("cut", "sh", "-c", size, inputs=[source])))
        assert web.cuts == 0
        assert any(wanted and wanted.startswith("bytes=300000") for _, wanted in web.requests), web.requests
        wrong = {**source, "sha256": "ab" * 32}
        job = team.start(training("wrong", "true", inputs=[wrong]))
        team.wait(f"dt/{job}", "--for=jsonpath={.status.completionTime}")
    failed = next(each for each in team.status(job)["conditions"] if each["type"] == "Failed")
    assert failed["reason"] == "InputFailed"
    assert failed["message"].startswith("spec.inputs[0]: ")
    assert "SHA-256" in failed["message"]
    assert not watch.states("wrong-master-0-0")


def test_two_jobs_that_need_the_same_file_fetch_it_once(team: Team, cluster: Cluster) -> None:
    team.kubectl("apply", "-f", "-", input=json.dumps(claim_of(DATA_CLAIM)))
    web = Behaviour(files={"/table": b"penguins" * 1000}, gate=threading.Event())
    with http_server(web, cluster.our_address) as url:
        source = {"name": "table", "from": f"{url}/table", "path": "/data"}
        jobs = [training(name, "test", "-s", "/data/table", inputs=[source]) for name in ("one", "two")]
        names = [team.start(job) for job in jobs]
        for name in names:
            team.wait(f"pod/{name}-fetch-table", "--for=condition=Ready")
        web.gate.set()
        for name in names:
            team.completes(name)
    whole = [wanted for path, wanted in web.requests if path == "/table" and wanted != "bytes=0-0"]
    assert len(whole) == 1, web.requests


def test_an_output_in_a_claim_is_the_input_of_the_next_job(team: Team) -> None:
    for name in (DATA_CLAIM, "results"):
        team.kubectl("apply", "-f", "-", input=json.dumps(claim_of(name)))
    place = "claim://results/models"
    to = [{"name": "model", "path": "/out", "to": place}]
    team.completes(team.start(training("made", "sh", "-c", "mkdir /out/a && echo weights > /out/a/net", outputs=to)))
    reads = "cat $ALLRANKS_INPUT_MODEL/a/net; grep -c sha256 /in/allranks-manifest.json; ! touch /in/here"
    source = [{"name": "model", "from": place, "path": "/in"}]
    team.completes(team.start(training("used", "sh", "-c", reads, inputs=source)))
    assert team.kubectl("logs", "used-master-0-0").splitlines()[0] == "weights"
    # A job that wrote nothing fails, and says so.
    job = team.start(training("empty", "true", outputs=to))
    team.wait(f"dt/{job}", "--for=jsonpath={.status.completionTime}")
    failed = next(each for each in team.status(job)["conditions"] if each["type"] == "Failed")
    assert failed["reason"] == "OutputFailed"


def test_a_job_starts_from_the_checkpoints_of_another_one(team: Team) -> None:
    """The manifest of examples/resume, after the example whose checkpoints it names."""
    team.completes(team.start(example("penguins-pytorch", args=["--epochs=4"])))
    longer = list(yaml.safe_load_all(of_tests((REPOSITORY / "examples" / "resume" / "penguins.yaml").read_text())))
    longer[-1]["spec"]["args"] = ["--epochs=6"]
    job = team.start(longer)
    status = team.completes(job)
    assert status["resumedFrom"] == "claim://penguins-pytorch/"
    assert status["attempt"] == 0
    log = team.kubectl("logs", f"{job}-worker-0-0")
    assert "resumed from epoch 4 of /checkpoints" in log
    assert "epoch 5/6" in log
    assert "epoch 4/6" not in log
    copied = team.kubectl("logs", f"{job}-worker-0-0", "-c", "allranks-resume")
    assert copied.startswith("the checkpoints of penguins-pytorch are copied: ")
    assert team.kubectl("logs", f"{job}-worker-1-0", "-c", "allranks-resume") == ""


def test_ranks_stream_tables_from_s3_with_the_credentials_of_a_secret(team: Team, s3: Any, tmp_path: Path) -> None:
    """The example in the image for data, which has the package of the protocol. The namespace has no claim."""
    first, *rows = TABLE.read_text().splitlines(keepends=True)
    for number in range(5):
        s3.put_object(Bucket="birds", Key=f"tables/{number}.csv", Body=(first + "".join(rows[number::5])).encode())
    folder = REPOSITORY / "examples" / "data"
    manifest = yaml.safe_load((folder / "stream.yaml").read_text())
    manifest["spec"] |= {"image": image("data"), "packages": None}
    manifest["spec"]["inputs"][0]["secret"] = "s3"
    job = tmp_path / "job.yaml"
    job.write_text(yaml.safe_dump(manifest))
    with watched(team) as watch:
        output(team, "submit", str(job), "--code", str(folder))
        status = team.completes("penguins-stream")
    [found] = status["inputs"]
    assert found["state"] == "Ready"
    assert found["revision"].startswith("list:")
    ranks, lookup = [f"penguins-stream-worker-{index}-0" for index in (0, 1)], "penguins-stream-fetch-data"
    assert all(created(watch, rank) >= ended(watch, lookup) for rank in ranks)
    logs = [team.kubectl("logs", rank) for rank in ranks]
    assert [log.split(":")[0] for log in logs] == ["3 of 5 tables", "2 of 5 tables"]
    counts = [ast.literal_eval(log.partition(": ")[2].strip()) for log in logs]
    assert sum(sum(count.values()) for count in counts) == len(rows)
    pod = team.get("pod", ranks[0])
    assert not [volume for volume in pod["spec"]["volumes"] if "persistentVolumeClaim" in volume]
    # The objects are others than at the time of the revision.
    s3.put_object(Bucket="birds", Key="tables/0.csv", Body=first.encode())
    changed = training("changed", "true", inputs=[{**manifest["spec"]["inputs"][0], "revision": found["revision"]}])
    late = team.start(changed)
    team.wait(f"dt/{late}", "--for=jsonpath={.status.completionTime}")
    failed = next(each for each in team.status(late)["conditions"] if each["type"] == "Failed")
    assert failed["reason"] == "InputFailed"
    assert "s3://birds/tables: the data was changed" in failed["message"]


def test_a_job_reads_from_google_and_writes_to_azure_with_a_secret_for_each(
    team: Team, cluster: Cluster, tmp_path: Path
) -> None:
    """Its input is that of examples/data/gs.yaml, and its output that of az.yaml, with Secrets as these files say."""
    team.kubectl("apply", "-f", "-", input=json.dumps(claim_of(DATA_CLAIM)))
    tokens = Behaviour(answers={"/token": lambda _: token_answer("abc")})
    here = cluster.our_address
    with gcs_server(here) as google, azure_server(here) as azure, http_server(tokens, here) as login:
        key = json.dumps({"token": google_key(login)})
        secrets = {"google": {**gcs_environment(google), "FSSPEC_GS": key}, "azure": azure_environment(azure)}
        for name, variables in secrets.items():
            given = (f"--from-literal={variable}={value}" for variable, value in variables.items())
            team.kubectl("create", "secret", "generic", name, *given)
        put_into_google(google, "birds", "penguins/penguins.csv", TABLE.read_bytes())
        client = azure_client(secrets["azure"])
        client.create_container("models")
        folder = REPOSITORY / "examples" / "data"
        reads, writes = (yaml.safe_load((folder / f"{name}.yaml").read_text()) for name in ("gs", "az"))
        reads["spec"] |= {"image": image("data"), "outputs": writes["spec"]["outputs"]}
        job = tmp_path / "job.yaml"
        job.write_text(yaml.safe_dump(reads))
        output(team, "submit", str(job), "--code", str(folder))
        status = team.completes("penguins-gs")
        assert tokens.requests, "the key was not used"
        [fetched], [uploaded] = status["inputs"], status["outputs"]
        assert (fetched["state"], fetched["bytes"]) == ("Ready", TABLE.stat().st_size)
        assert (uploaded["state"], uploaded["files"]) == ("Uploaded", 2)
        models = client.get_container_client("models")
        body = json.loads(models.download_blob("penguins/allranks-manifest.json").readall())
        assert {file["name"] for file in body["files"]} == {"rank-0.json", "rank-1.json"}
        models.close()
        client.close()


def put_into_google(url: str, bucket: str, name: str, content: bytes) -> None:
    """Uses Google's JSON API."""
    for path, data in (
        ("storage/v1/b?project=birds", json.dumps({"name": bucket}).encode()),
        (f"upload/storage/v1/b/{bucket}/o?uploadType=media&name={quote(name, safe='')}", content),
    ):
        urlopen(Request(f"{url}/{path}", data, method="POST"), timeout=300).close()


def azure_client(environment: dict[str, str]) -> Any:
    from azure.storage.blob import BlobServiceClient

    text = environment["AZURE_STORAGE_CONNECTION_STRING"]
    return BlobServiceClient.from_connection_string(text, api_version="2025-11-05")
