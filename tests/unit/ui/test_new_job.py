"""A new job from a manifest, and from another job: REST and page, with an API server in memory."""

from __future__ import annotations

import html
import re
from typing import Any
from urllib.parse import urlencode

import pytest

from allranks.ui.entries import Entry
from allranks.ui.routes.new_job import TEMPLATES, check, copy_of, next_name, starter

FORM = {"content_type": "application/x-www-form-urlencoded"}


def manifest(name: str = "whales", **spec: Any) -> dict[str, Any]:
    basis = {"framework": "pytorch", "image": "me/train:1", "command": ["torchrun", "train.py"]}
    return {
        "apiVersion": "allranks.dev/v1alpha1",
        "kind": "DistributedTraining",
        "metadata": {"name": name},
        "spec": {**basis, "roles": {"worker": {"replicas": 2}}, **spec},
    }


def submit(server, text: str, action: str, namespace: str = "team"):
    body = urlencode({"manifest": text, "action": action})
    return server.request("POST", f"/new?namespace={namespace}", body, **FORM)


def text_of(page) -> str:
    found = re.search(r'<textarea id="manifest"[^>]*>(.*?)</textarea>', page.text, re.DOTALL)
    assert found
    return html.unescape(found[1])


def test_rest_creates_a_job_and_shows_it_at_once(server, api):
    server.get("/api/v1/jobs")
    answer = server.request("POST", "/api/v1/jobs?namespace=team", manifest())
    assert (answer.status, answer.json["message"]) == (201, "whales created")
    assert api.jobs["whales"]["spec"]["image"] == "me/train:1"
    assert server.get("/api/v1/jobs/team/whales").status == 200


def test_a_dry_run_creates_nothing(server, api):
    answer = server.request("POST", "/api/v1/jobs?namespace=team&dryRun=true", manifest())
    assert (answer.status, answer.json["message"]) == (201, "whales can be created in namespace team")
    assert "whales" not in api.jobs


@pytest.mark.parametrize(
    ("body", "status", "detail"),
    [
        (manifest(replicas=3), 422, "spec.replicas: "),
        ({"kind": "Pod"}, 422, "kind: "),
        ({**manifest(), "metadata": {"name": "whales", "namespace": "other"}}, 422, "metadata.namespace: it is other"),
        (manifest("penguins"), 409, "already exists"),
    ],
)
def test_a_job_that_cannot_be_created_is_a_problem_with_the_field(server, api, body, status, detail):
    answer = server.request("POST", "/api/v1/jobs?namespace=team", body)
    assert answer.status == status, answer.text
    assert detail in answer.json["detail"]
    assert set(api.jobs) == {"penguins", "broken"}


def test_a_user_without_the_right_reads_which_one_is_missing(server, api):
    server.get("/api/v1/jobs")
    api.forbidden.add("distributedtrainings")
    answer = server.request("POST", "/api/v1/jobs?namespace=team", manifest())
    assert answer.status == 403
    assert "me may not create distributedtrainings in namespace team" in answer.json["detail"]


def test_a_job_runs_again_under_the_next_name(server, api):
    uid = api.jobs["broken"]["metadata"]["uid"]
    answer = server.request("POST", f"/api/v1/jobs/team/broken/resubmit?uid={uid}")
    assert (answer.status, answer.json["message"]) == (201, "broken-2 created")
    assert api.jobs["broken-2"]["spec"] == api.jobs["broken"]["spec"]
    assert "status" not in api.jobs["broken-2"]
    again = server.request("POST", "/api/v1/jobs/team/broken/resubmit")
    assert again.json["message"] == "broken-3 created"
    assert server.request("POST", "/api/v1/jobs/team/broken/resubmit?uid=other").status == 409


def test_a_copy_has_no_state_of_the_first_job():
    metadata = {
        "labels": {"team": "nlp", "kueue.x-k8s.io/queue-name": "q", "allranks.dev/sweep": "s"},
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", "why": "test"},
        "uid": "u",
        "resourceVersion": "7",
        "ownerReferences": [{"name": "sweep"}],
    }
    job = {**manifest(suspend=True), "metadata": {**metadata, "name": "whales"}, "status": {"phase": "Failed"}}
    metadata_of_copy = {"name": "whales-3", "namespace": "team", "labels": {"team": "nlp"}}
    metadata_of_copy["annotations"] = {"why": "test"}
    assert copy_of(Entry("jobs", "team", "whales", job), ["whales", "whales-2"]) == {
        **manifest(),
        "metadata": {
            "name": "whales-3",
            "namespace": "team",
            "labels": {"team": "nlp"},
            "annotations": {"why": "test"},
        },
    }


@pytest.mark.parametrize(
    ("name", "taken", "expected"),
    [
        ("penguins", ["penguins"], "penguins-2"),
        ("penguins-2", ["penguins", "penguins-2", "penguins-3"], "penguins-4"),
        ("resnet-50000", [], "resnet-50000-2"),
    ],
)
def test_the_next_name_is_the_next_free_number(name, taken, expected):
    assert next_name(name, taken) == expected


EXAMPLE = starter("pytorch")


def mistakes(text: str) -> list[tuple[int, str, str]]:
    """(line, path, message) of each error, warning and note."""
    return [(one.line, one.problem.path, one.problem.message) for one in check(text)[1]]


@pytest.mark.parametrize("framework", TEMPLATES)
def test_each_framework_has_a_template_without_mistakes(server, framework):
    text = text_of(server.get(f"/new?namespace=team&template={framework}"))
    job, findings = check(text)
    mistakes = [finding for finding in findings if finding.problem.severity != "note"]
    assert (job["spec"]["framework"], mistakes) == (framework, [])
    assert "  # " in text, "comments say what may be filled in"
    assert server.get("/new?namespace=team&template=none").status == 404


def test_the_page_checks_and_creates_what_somebody_types(server, api):
    text = text_of(server.get("/new?namespace=team"))
    assert text.strip() == EXAMPLE.strip()
    page = submit(server, text, "check")
    assert "train can be created in namespace team" in page.text
    assert text_of(page).strip() == text.strip()
    assert "train" not in api.jobs
    answer = submit(server, text, "create")
    assert (answer.status, answer.headers["location"]) == (303, "/jobs/team/train")
    assert server.get("/jobs/team/train").status == 200


def test_the_page_has_the_manifest_of_the_job_that_runs_again(server, api):
    assert "/new?namespace=team&amp;from=broken" in server.get("/jobs/team/broken").text
    found, _ = check(text_of(server.get("/new?namespace=team&from=broken")))
    assert (found["metadata"]["name"], found["spec"]) == ("broken-2", api.jobs["broken"]["spec"])


LINES = EXAMPLE.splitlines()
MISTAKES = [
    ("a: b: c", 1, "the text is not YAML"),
    ("", 0, "the text has 0 documents: write one job"),
    (f"{EXAMPLE}---\n{EXAMPLE}", 0, "the text has 2 documents: write one job"),
    ("a: &x [1]\nb: *x\n", 2, "an alias (*NAME) cannot be used here: write its value"),
    ("kind: Pod\nkind: Pod\n", 2, "duplicate key kind"),
    ("- 1", 0, "a manifest must be a mapping, not a list"),
    (EXAMPLE.replace("replicas: 2", "replicas: two"), LINES.index("      replicas: 2  # pods") + 1, "worker.replicas"),
    (EXAMPLE.replace("framework:", "frmework:"), LINES.index("  framework: pytorch") + 1, "did you mean framework?"),
    (EXAMPLE.replace("  framework: pytorch\n", ""), LINES.index("spec:") + 1, "spec.framework: is required"),
    (EXAMPLE.replace("spec:", "spec:\n  code: /etc"), LINES.index("spec:") + 2, "spec.code: must be a mapping"),
    ("<script>alert(1)</script>: 1", 0, "kind: is required"),
]


@pytest.mark.parametrize(("text", "line", "problem"), MISTAKES)
def test_mistakes_are_on_the_page_with_their_lines_and_the_text_is_kept(server, api, text, line, problem):
    page = submit(server, text, "create")
    assert page.status == 422
    place = f"line {line}: " if line else ""
    shown = html.unescape(re.sub("<.*?>", "", page.text[page.text.index('id="problems"') :]))
    assert re.search(f"{place}.*{re.escape(problem)}", shown)
    assert text_of(page).strip() == text.strip()
    assert "<script>alert" not in page.text
    assert set(api.jobs) == {"penguins", "broken"}
    live = server.request("POST", "/new/problems", urlencode({"manifest": text}), **FORM)
    assert live.status == 200
    assert "<html" not in live.text
    assert live.text.strip() in page.text


def test_paths_into_lists_and_maps_have_lines():
    text = (
        EXAMPLE + "  resources:\n    limits:\n      nvidia.com/gpu: 1x\n  env:\n  - name: A\n    value: a\n  - nam: B\n"
    )
    begin = len(LINES)
    found = {path: line for line, path, _ in mistakes(text)}
    assert found["spec.resources.limits[nvidia.com/gpu]"] == begin + 3
    assert found["spec.env[1].nam"] == begin + 7


def test_no_file_of_the_server_is_read(tmp_path):
    (tmp_path / "train.py").write_text("secret = 1")
    [(_, path, message)] = mistakes(EXAMPLE.replace("spec:", f"spec:\n  code: {tmp_path}"))
    assert (path, message) == ("spec.code", "must be a mapping, not a string")


def test_warnings_do_not_keep_a_job_from_its_creation(server, api):
    text = EXAMPLE.replace(
        "  restart:", "  template: {spec: {containers: [{name: main, image: me/proxy:1}]}}\n  restart:"
    )
    assert "warning: " in server.request("POST", "/new/problems", urlencode({"manifest": text}), **FORM).text
    assert submit(server, text, "create").status == 303


def test_a_job_with_a_generated_name_can_be_created():
    job, found = check(EXAMPLE.replace("  name: train", "  generateName: train-"))
    assert (job["metadata"], found) == ({"generateName": "train-"}, [])


@pytest.mark.parametrize("action", ["check", "create"])
def test_the_page_says_what_the_api_server_answers_and_keeps_the_text(server, api, action):
    server.get("/api/v1/jobs")
    page = submit(server, EXAMPLE.replace("name: train", "name: penguins"), action)
    assert page.status == 409
    assert "already exists" in page.text
    api.forbidden.add("distributedtrainings")
    page = submit(server, EXAMPLE, action)
    assert page.status == 403
    assert "me may not create distributedtrainings in namespace team" in page.text
    assert text_of(page).strip() == EXAMPLE.strip()


def test_a_text_that_is_too_deep_is_a_problem():
    assert mistakes("[" * 20_000)


@pytest.mark.parametrize("text", [f"{EXAMPLE}---\n", f"---\n---\n{EXAMPLE}"], ids=["behind it", "before it"])
def test_an_empty_document_is_left_out(text):
    job, found = check(text)
    assert (job["metadata"]["name"], found) == ("train", [])


def test_the_lines_of_a_job_in_a_list_are_those_of_the_text():
    item = "".join(f"  {line}\n" for line in EXAMPLE.splitlines()).replace("  ", "- ", 1)
    text = f"apiVersion: v1\nkind: List\nitems:\n{item}"
    [(line, path, _)] = mistakes(text.replace("replicas: 2", "replicas: two"))
    assert (line, path) == (LINES.index("      replicas: 2  # pods") + 4, "spec.roles.worker.replicas")
