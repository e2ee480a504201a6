"""The form of a new job: made from the schema, and in step with the manifest."""

from __future__ import annotations

import html
import re
from typing import Any
from urllib.parse import urlencode

import pytest
import yaml

from allranks.api import job
from allranks.api.crd import root_schema
from allranks.api.validation import parse
from allranks.errors import InvalidManifest
from allranks.ui.job_form import PREFIX, Input, change, form
from allranks.ui.new_job import EXAMPLE, read
from support.ui_samples import HOSTILE

DOCUMENT = read(EXAMPLE)
SPEC = root_schema(job.KIND)["properties"]["spec"]["properties"]


def inputs(document: Any = DOCUMENT, problems: Any = ()) -> dict[str, Input]:
    return {one.path: one for section in form(document, problems) for one in section.inner}


def spec(**fields: Any) -> dict[str, Any]:
    return {**DOCUMENT, "spec": {**DOCUMENT["spec"], **fields}}


def edited(*given: tuple[str, str], document: Any = DOCUMENT) -> dict[str, Any]:
    made, problems = change(document, {f"{PREFIX}{path}": text for path, text in given})
    assert problems == []
    return made


def test_each_field_of_the_schema_is_in_the_form():
    paths = set(inputs())
    for name in SPEC.keys() - {"tensorflow", "horovod", "jax", "ray", "mpi", "spmd"}:
        assert any(path == f"spec.{name}" or path.startswith(f"spec.{name}.") for path in paths), name


@pytest.mark.parametrize("framework", ["tensorflow", "horovod", "jax", "ray", "mpi", "spmd"])
def test_options_of_a_framework_are_those_of_the_chosen_one(framework):
    assert any(path.startswith(f"spec.{framework}.") for path in inputs(spec(framework=framework)))
    assert not any(path.startswith("spec.pytorch.") for path in inputs(spec(framework=framework)))


def test_descriptions_are_the_help_enums_are_choices_and_bounds_those_of_the_input():
    found = inputs()
    framework = found["spec.framework"]
    assert (framework.kind, framework.value, framework.required) == ("choice", "pytorch", True)
    assert list(framework.choices) == SPEC["framework"]["enum"]
    assert framework.help == SPEC["framework"]["description"]
    restarts = found["spec.restart.maxRestarts"]
    assert (restarts.kind, restarts.minimum, restarts.maximum, restarts.placeholder) == ("number", 0, 9999, "3")
    assert found["spec.suspend"].choices == ("true", "false")
    assert found["spec.roles.worker.replicas"].value == "2"
    assert (found["spec.command"].kind, found["spec.command"].value) == ("lines", "torchrun\ntrain.py")
    assert found["spec.env"].kind == "yaml"
    assert found["metadata.name"].value == "my-job"


@pytest.mark.parametrize(
    ("path", "text", "value"),
    [
        ("framework", "jax", "jax"),
        ("roles.worker.replicas", "8", 8),
        ("roles.worker.replicas", "many", "many"),
        ("suspend", "true", True),
        ("command", "python\n\n train.py ", ["python", "train.py"]),
        ("command", '["a\\nb", c]', ["a\nb", "c"]),
        ("resources.limits", "nvidia.com/gpu: 8", {"nvidia.com/gpu": 8}),
        ("pytorch.processesPerNode", "Auto", "Auto"),
        ("pytorch.processesPerNode", "4", 4),
        ("hang.timeoutSeconds", "600", 600),
        ("image", "  me/train:2 ", "me/train:2"),
    ],
)
def test_a_field_is_written_into_the_manifest_and_shown_from_it(path, text, value):
    made = edited((f"spec.{path}", text))
    found = made["spec"]
    for key in path.split("."):
        found = found[key]
    assert found == value
    again = edited((f"spec.{path}", inputs(made)[f"spec.{path}"].value), document=made)
    assert again == made, "what the form shows is what the manifest says"


def test_an_empty_field_is_removed_with_the_objects_that_become_empty_but_roles_stay():
    made = edited(("spec.scheduling.topology.required", "zone"), ("spec.hang.timeoutSeconds", "5"))
    assert edited(("spec.scheduling.topology.required", ""), ("spec.hang.timeoutSeconds", ""), document=made) == edited(
        ("spec.image", "registry.example.com/me/train:1")
    )
    assert edited(("spec.roles.worker.replicas", ""))["spec"]["roles"] == {"worker": {}}
    assert edited(("spec.resources.limits", ""), ("spec.elastic.minReplicas", "")) == DOCUMENT


def test_a_role_with_nothing_in_it_can_be_filled():
    document = spec(roles={"worker": None})
    assert inputs(document)["spec.roles.worker.replicas"].value == ""
    assert edited(("spec.roles.worker.replicas", "3"), document=document)["spec"]["roles"] == {
        "worker": {"replicas": 3}
    }


@pytest.mark.parametrize(
    "path",
    [
        "kind",
        "metadata.uid",
        "spec",
        "spec.nothing",
        "spec.roles",
        "spec.roles.worker",
        "status.phase",
        "spec.template.x.y",
        "",
    ],
)
def test_only_fields_of_the_form_can_be_changed(path):
    assert edited((path, "x")) == DOCUMENT


@pytest.mark.parametrize("text", ["a: [", "a: b: c", "a: &x 1\nb: *x", "\x00"])
def test_a_field_that_is_not_yaml_says_so_and_changes_nothing(text):
    made, problems = change(DOCUMENT, {f"{PREFIX}spec.env": text})
    assert made == DOCUMENT
    assert [path for path, _ in problems] == ["spec.env"]
    assert problems[0][1].startswith(("this is not YAML", "it has an alias"))


def test_a_mistake_is_at_its_field():
    document = spec(roles={"worker": {"replicas": -1}}, env=[{"name": "A", "nothing": 1}])
    with pytest.raises(InvalidManifest) as error:
        parse(document)
    found = inputs(document, error.value.problems)
    assert "0" in found["spec.roles.worker.replicas"].problem
    assert found["spec.env"].problem
    assert {one.path for one in found.values() if one.problem} == {"spec.roles.worker.replicas", "spec.env"}


@pytest.mark.parametrize("document", [None, [], "x", {}, {"spec": 3, "metadata": []}, {"spec": {"roles": [1]}}])
def test_any_document_has_a_form(document):
    assert inputs(document)["spec.framework"].value == ""


# --- the page --------------------------------------------------------------------------------------------------------


def post(server, action: str, text: str = EXAMPLE, **fields: str):
    body = urlencode({"manifest": text, "action": action, **{f"{PREFIX}{key}": value for key, value in fields.items()}})
    return server.request("POST", "/new?namespace=team", body, content_type="application/x-www-form-urlencoded")


def manifest_of(page) -> str:
    found = re.search(r'<textarea id="manifest"[^>]*>(.*?)</textarea>', page.text, re.DOTALL)
    assert found
    return html.unescape(found[1])


def test_a_change_of_a_field_is_in_the_manifest_and_is_checked(server, api):
    page = post(server, "edit", **{"spec.roles.worker.replicas": "-4"})
    assert page.status == 200
    assert yaml.safe_load(manifest_of(page))["spec"]["roles"]["worker"]["replicas"] == -4
    assert 'id="problem-spec.roles.worker.replicas"' in page.text
    page = post(server, "edit", manifest_of(page), **{"spec.roles.worker.replicas": "4"})
    assert "The manifest has no mistakes" in page.text
    assert "aria-invalid" not in page.text
    assert set(api.jobs) == {"penguins", "broken"}


def test_a_change_of_the_manifest_is_in_the_fields_and_the_text_is_kept(server):
    text = EXAMPLE.replace("replicas: 2", "replicas: 7 # seven")
    page = post(server, "edit", text)
    assert manifest_of(page).strip() == text.strip(), "comments stay as long as only the text changes"
    assert re.search(r'id="f-spec.roles.worker.replicas"[^>]*value="7"', page.text)


def test_while_the_manifest_is_not_yaml_there_is_a_line(server):
    page = post(server, "edit", "a: b: c")
    assert page.status == 200
    assert "line 1, column 5" in page.text
    assert "data-broken" in page.text


def test_without_a_script_a_button_writes_all_fields(server):
    page = post(server, "apply", **{"spec.image": "me/other:3", "metadata.name": "otters", "spec.pool": ""})
    found = yaml.safe_load(manifest_of(page))
    assert (found["metadata"]["name"], found["spec"]["image"]) == ("otters", "me/other:3")


def test_what_was_typed_just_before_create_counts(server, api):
    fields = {"spec.image": "me/late:1", "metadata.name": "otters", "spec.pool": "ignored"}
    body = {"manifest": EXAMPLE, "action": "create", "pending": f"{PREFIX}spec.image\n{PREFIX}metadata.name"}
    body |= {f"{PREFIX}{name}": value for name, value in fields.items()}
    form = {"content_type": "application/x-www-form-urlencoded"}
    assert server.request("POST", "/new?namespace=team", urlencode(body), **form).status == 303
    assert api.jobs["otters"]["spec"] == {**DOCUMENT["spec"], "image": "me/late:1"}


def test_hostile_values_are_text(server):
    page = post(server, "edit", **{"spec.image": HOSTILE, "metadata.name": HOSTILE, "spec.command": HOSTILE})
    assert "<script>alert" not in page.text
    assert "<img" not in page.text
