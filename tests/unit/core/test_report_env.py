"""The variables by which ranks report: those of allranks, and those by which `transformers` reports by itself."""

from __future__ import annotations

from typing import Any

from allranks.api.status import Status
from allranks.core.facts.model import Manifest, Platform
from allranks.core.objects import pods
from support.builders import job, table

URL = "http://allranks.allranks-system.svc:8081/v1/report"
TOKEN = "/var/run/secrets/allranks.dev/token"
PLATFORM = Platform(helper_image="helper", report_url=URL)
OURS = {"KUBEFLOW_TRAINER_SERVER_URL": URL, "KUBEFLOW_TRAINER_SERVER_TOKEN": TOKEN}
OFF = {"DISABLE_ALLRANKS_INTEGRATION": "TRUE"}


def variables(platform: Platform = PLATFORM, **spec: Any) -> dict[str, Any]:
    """The variables that concern reports without a changed line, of the pod's trainer."""
    return {
        variable["name"]: variable.get("value", variable.get("valueFrom"))
        for variable in trainer(platform, **spec)["env"]
        if variable["name"].startswith(("KUBEFLOW_", "DISABLE_"))
    }


def trainer(platform: Platform = PLATFORM, **spec: Any) -> Manifest:
    pod = pods.objects(job(**spec), Status(), platform).pods[0]
    [container] = pod["spec"]["containers"]
    names = [variable["name"] for variable in container["env"]]
    assert len(names) == len(set(names))
    return container  # type: ignore[no-any-return]


SECRET = {"secretKeyRef": {"name": "trainer", "key": "token"}}


@table(
    ("by default transformers reports to the operator, with the token of the pod", {}, OURS),
    ("a server of the user is kept", {"KUBEFLOW_TRAINER_SERVER_URL": "https://other"},
     {"KUBEFLOW_TRAINER_SERVER_URL": "https://other"}),
    ("a token of the user is kept, and not sent to the operator", {"KUBEFLOW_TRAINER_SERVER_TOKEN": "/token"},
     {"KUBEFLOW_TRAINER_SERVER_TOKEN": "/token"}),
    ("a certificate means a server of the user", {"KUBEFLOW_TRAINER_SERVER_CA_CERT": "/ca"},
     {"KUBEFLOW_TRAINER_SERVER_CA_CERT": "/ca"}),
    ("a token that comes from a Secret is kept", {"KUBEFLOW_TRAINER_SERVER_TOKEN": SECRET},
     {"KUBEFLOW_TRAINER_SERVER_TOKEN": SECRET}),
    ("a program that wants no reports of its own accord", OFF, OFF),
    ("any other value of this variable changes nothing", {"DISABLE_ALLRANKS_INTEGRATION": "FALSE"},
     {"DISABLE_ALLRANKS_INTEGRATION": "FALSE", **OURS}),
    ("Hugging Face's own switch works in the program", {"DISABLE_KUBEFLOW_INTEGRATION": "TRUE"},
     {"DISABLE_KUBEFLOW_INTEGRATION": "TRUE", **OURS}),
)  # fmt: skip
def test_variables_of_the_user_are_never_replaced(case: Any) -> None:
    given, expected = case
    env = [{"name": name, **({"value": value} if isinstance(value, str) else {"valueFrom": value})}
           for name, value in given.items()]  # fmt: skip
    assert variables(env=env) == expected


def test_a_variable_in_the_template_counts_as_one_of_the_user() -> None:
    own = {"name": "KUBEFLOW_TRAINER_SERVER_URL", "value": "https://other"}
    template = {"spec": {"containers": [{"name": "trainer", "env": [own]}]}}
    assert variables(template=template) == {"KUBEFLOW_TRAINER_SERVER_URL": "https://other"}


def test_progress_automatic_false_turns_all_of_it_off() -> None:
    assert variables(progress={"automatic": False}) == OFF
    assert variables(progress={}) == OURS
    own = [{"name": "DISABLE_ALLRANKS_INTEGRATION", "value": "FALSE"}]
    assert variables(progress={"automatic": False}, env=own) == {"DISABLE_ALLRANKS_INTEGRATION": "FALSE"}


def test_without_a_report_server_there_are_none() -> None:
    assert variables(Platform(helper_image="helper")) == {}
    assert variables(Platform(helper_image="helper"), progress={"automatic": False}) == {}


def test_a_local_run_adds_them_with_the_token_of_each_pod() -> None:
    assert variables(Platform(helper_image="helper", report_url=URL, local=True)) == {}


def test_the_library_is_configured_whether_or_not_reports_are_automatic() -> None:
    for progress in ({"automatic": True}, {"automatic": False}):
        env = {variable["name"]: variable["value"] for variable in trainer(progress=progress)["env"]}
        assert (env["ALLRANKS_REPORT_URL"], env["ALLRANKS_REPORT_TOKEN_FILE"]) == (URL, TOKEN)


def waiting(**spec: Any) -> list[str]:
    """The pods whose helper waits for the other pods, as `role-index`."""
    manifests = pods.objects(job(**spec), Status(), PLATFORM).pods
    labels = {
        manifest["metadata"]["name"].removeprefix("job-").removesuffix("-0"): {
            variable["name"] for variable in manifest["spec"]["containers"][0]["env"]
        }
        for manifest in manifests
    }
    return sorted(name for name, names in labels.items() if "ALLRANKS_START_TOGETHER" in names)


def probed(kind: str) -> dict[str, Any]:
    container = {"name": "trainer", kind: {"tcpSocket": {"port": 80}}}
    return {"spec": {"containers": [container]}}


BOTH = ["worker-0", "worker-1"]
ELASTIC = {"minReplicas": 1, "maxReplicas": 2}


@table(
    ("a helper runs anyway", {"progress": {}}, BOTH),
    ("no helper", {}, []),
    ("no helper, and Always", {"startTogether": "Always"}, BOTH),
    ("Never", {"progress": {}, "startTogether": "Never"}, []),
    ("new pods after each failure", {"progress": {}, "restart": {"inPlace": "Never"}}, []),
    ("new pods after each failure, and Always", {"startTogether": "Always", "restart": {"inPlace": "Never"}}, BOTH),
    ("a single pod", {"progress": {}, "roles": {"worker": 1}}, []),
    ("each pod restarts alone", {"progress": {}, "restart": {"scope": "Pod"}}, []),
    ("an elastic job", {"progress": {}, "restart": {"scope": "Group"}, "elastic": ELASTIC}, []),
    ("an evaluator", {"progress": {}, "framework": "tensorflow", "roles": {"worker": 2, "evaluator": 1}}, BOTH),
    ("a livenessProbe", {"progress": {}, "template": probed("livenessProbe")}, []),
    ("a startupProbe", {"progress": {}, "template": probed("startupProbe")}, []),
    ("a readinessProbe", {"progress": {}, "template": probed("readinessProbe")}, BOTH),
    (
        "a kubelet that restarts the container",
        {"progress": {}, "template": {"spec": {"restartPolicy": "OnFailure"}}},
        [],
    ),
)
def test_pods_start_together(case: tuple[dict[str, Any], list[str]]):
    spec, expected = case
    assert waiting(**{"roles": {"worker": 2}, **spec}) == expected
