"""The web UI of the chart: a Deployment of its own, restricted, without a token and without rights."""

from __future__ import annotations

from typing import Any

import pytest

from allranks.cli.commands.ui import CLUSTER_AUTHORITY, ui_server
from support.helm import Helm, HelmError, Manifest

pytestmark = pytest.mark.cluster

VALUES: Manifest = {"ui": {"enabled": True}, "networkPolicy": {"enabled": True}}


def with_ui(helm: Helm, **ui: Any) -> dict[tuple[str, str], Manifest]:
    made = helm.template({**VALUES, "ui": {"enabled": True, **ui}})
    return {(one["kind"], one["metadata"]["name"]): one for one in made}


def pod_of(objects: dict[tuple[str, str], Manifest]) -> Manifest:
    found: Manifest = objects["Deployment", "allranks-ui"]["spec"]["template"]["spec"]
    return found


def test_the_ui_is_off_unless_enabled(helm: Helm) -> None:
    assert not [one for one in helm.template({}) if "ui" in one["metadata"]["name"].split("-")]


def test_the_ui_adds_only_its_own_objects_and_changes_nothing_else(helm: Helm) -> None:
    policy = {"networkPolicy": {"enabled": True}}
    without = {(one["kind"], one["metadata"]["name"]): one for one in helm.template(policy)}
    found = with_ui(helm)
    added = found.keys() - without.keys()
    kinds = ("ServiceAccount", "Service", "Deployment", "NetworkPolicy")
    assert added == {(kind, "allranks-ui") for kind in kinds}
    assert {key: found[key] for key in without} == without
    for key in added:
        metadata = found[key]["metadata"]
        assert (metadata["namespace"], metadata["labels"]["app.kubernetes.io/component"]) == ("sys", "ui")


def test_the_pod_is_restricted_and_has_no_token_and_its_account_no_rights(helm: Helm) -> None:
    found = with_ui(helm)
    spec = pod_of(found)
    assert spec["serviceAccountName"] == "allranks-ui"
    assert spec["automountServiceAccountToken"] is False
    assert found["ServiceAccount", "allranks-ui"]["automountServiceAccountToken"] is False
    assert spec["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    [container] = spec["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert container["resources"]["limits"]["memory"] == "1Gi"
    assert {"name": "authority", "configMap": {"name": "kube-root-ca.crt"}} in spec["volumes"]
    assert not [volume for volume in spec["volumes"] if "projected" in volume or "secret" in volume]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts["authority"] == str(CLUSTER_AUTHORITY.parent)
    bound = [one for (kind, _), one in found.items() if kind.endswith("RoleBinding")]
    assert bound
    assert "allranks-ui" not in {subject["name"] for one in bound for subject in one.get("subjects", ())}


def test_the_variables_are_options_of_the_command(helm: Helm) -> None:
    [container] = pod_of(with_ui(helm, namespaces=["team-a", "team-b"]))["containers"]
    assert container["command"] == ["allranks", "ui-server"]
    variables = {one["name"]: one["value"] for one in container["env"]}
    assert variables == {"ALLRANKS_UI_PORT": "8080", "ALLRANKS_UI_NAMESPACES": "team-a,team-b"}
    assert set(variables) <= {option.envvar for option in ui_server.params}
    assert container["ports"] == [{"name": "http", "containerPort": 8080}]
    for probe in ("livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"] == {"path": "/healthz", "port": "http"}


def test_the_namespaces_of_the_release_are_suggested(helm: Helm) -> None:
    made = helm.template({**VALUES, "namespaces": ["team-a"]})
    [deployment] = [one for one in made if one["kind"] == "Deployment" and one["metadata"]["name"] == "allranks-ui"]
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    assert {"name": "ALLRANKS_UI_NAMESPACES", "value": "team-a"} in container["env"]


def test_the_service_selects_the_ui_and_not_the_operator(helm: Helm) -> None:
    found = with_ui(helm, service={"annotations": {"a": "b"}})
    service = found["Service", "allranks-ui"]
    labels = found["Deployment", "allranks-ui"]["spec"]["template"]["metadata"]["labels"]
    operator = found["Deployment", "allranks"]["spec"]["template"]["metadata"]["labels"]
    selector = service["spec"]["selector"]
    assert selector.items() <= labels.items()
    assert not selector.items() <= operator.items()
    assert not found["Service", "allranks"]["spec"]["selector"].items() <= labels.items()
    assert service["spec"]["ports"] == [{"name": "http", "port": 80, "targetPort": "http"}]
    assert service["metadata"]["annotations"] == {"a": "b"}


def test_only_the_named_peers_connect_and_the_ui_reaches_the_api_server(helm: Helm) -> None:
    policy = with_ui(helm)["NetworkPolicy", "allranks-ui"]["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert "ingress" not in policy
    assert policy["egress"] == with_ui(helm)["NetworkPolicy", "allranks"]["spec"]["egress"]
    assert {port["port"] for rule in policy["egress"] for port in rule["ports"]} == {53, 443, 6443}
    peer = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress"}}}
    policy = with_ui(helm, **{"from": [peer]})["NetworkPolicy", "allranks-ui"]["spec"]
    assert policy["ingress"] == [{"ports": [{"port": "http", "protocol": "TCP"}], "from": [peer]}]


def test_peers_are_enough_for_a_policy_which_leaves_the_connections_of_the_ui_alone(helm: Helm) -> None:
    peer = {"podSelector": {"matchLabels": {"app": "oauth2-proxy"}}}
    values = {"ui": {"enabled": True, "from": [peer]}}
    policies = [one for one in helm.template(values) if one["kind"] == "NetworkPolicy"]
    [spec] = [policy["spec"] for policy in policies if policy["metadata"]["name"] == "allranks-ui"]
    assert spec["policyTypes"] == ["Ingress"]
    assert spec["ingress"] == [{"ports": [{"port": "http", "protocol": "TCP"}], "from": [peer]}]
    assert "egress" not in spec
    assert len(policies) == 1
    assert not [one for one in helm.template({"ui": {"enabled": True}}) if one["kind"] == "NetworkPolicy"]


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ({"tag": "1.2.3"}, "ghcr.io/allranks/ui:1.2.3"),
        ({"repository": "mirror.example/ui", "digest": "sha256:" + "0" * 64}, "mirror.example/ui@sha256:" + "0" * 64),
    ],
)
def test_the_image_is_that_of_the_values(helm: Helm, image: Manifest, name: str) -> None:
    assert pod_of(with_ui(helm, image=image))["containers"][0]["image"] == name


def test_a_global_registry_serves_the_ui_as_well(helm: Helm) -> None:
    made = helm.template({**VALUES, "global": {"imageRegistry": "mirror.example"}})
    images = {
        container["image"].rpartition(":")[0]
        for one in made
        if one["kind"] == "Deployment"
        for container in one["spec"]["template"]["spec"]["containers"]
    }
    assert images == {"mirror.example/allranks/operator", "mirror.example/allranks/ui"}


# --- the archive -----------------------------------------------------------------------------------------------------

CLAIM: Manifest = {"claim": "history"}
BUCKET: Manifest = {"url": "s3://team/history", "secretName": "writer", "ports": [9000]}
ROLE: Manifest = {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/reader"}}


def with_archive(helm: Helm, place: Manifest, **ui: Any) -> dict[tuple[str, str], Manifest]:
    values = {**VALUES, "ui": {"enabled": True, "archive": {"enabled": True}, **ui}, "archive": place}
    return {(one["kind"], one["metadata"]["name"]): one for one in helm.template(values)}


def test_the_claim_of_the_archive_is_mounted_for_reading_only(helm: Helm) -> None:
    found = with_archive(helm, CLAIM)
    assert ("Deployment", "allranks-archiver") not in found, "the archiver may be of another release"
    spec = pod_of(found)
    [container] = spec["containers"]
    assert {"name": "archive", "mountPath": "/archive", "readOnly": True} in container["volumeMounts"]
    claim = {"name": "archive", "persistentVolumeClaim": {"claimName": "history", "readOnly": True}}
    assert claim in spec["volumes"]
    assert spec["securityContext"]["fsGroup"] == 65532
    assert {"name": "ALLRANKS_ARCHIVE", "value": "/archive"} in container["env"]
    assert "envFrom" not in container
    assert found["NetworkPolicy", "allranks-ui"] == with_ui(helm)["NetworkPolicy", "allranks-ui"]


@pytest.mark.parametrize(
    ("own", "account", "source"),
    [
        ({"secretName": "reader"}, {}, [{"secretRef": {"name": "reader"}}]),
        ({}, ROLE, None),
        ({"secretName": "reader"}, ROLE, [{"secretRef": {"name": "reader"}}]),
    ],
)
def test_a_bucket_is_read_with_credentials_of_the_ui_alone(
    helm: Helm, own: Manifest, account: Manifest, source: list[Manifest] | None
) -> None:
    found = with_archive(helm, BUCKET, archive={"enabled": True, **own}, serviceAccount=account)
    spec = pod_of(found)
    [container] = spec["containers"]
    assert {"name": "ALLRANKS_ARCHIVE", "value": "s3://team/history"} in container["env"]
    assert container.get("envFrom") == source
    assert [volume["name"] for volume in spec["volumes"]] == ["authority", "tmp"]
    assert "fsGroup" not in spec["securityContext"]
    assert found["ServiceAccount", "allranks-ui"]["metadata"].get("annotations") == account.get("annotations")
    ports = [
        [port["port"] for port in rule["ports"]] for rule in found["NetworkPolicy", "allranks-ui"]["spec"]["egress"]
    ]
    assert ports[-1] == [9000]


@pytest.mark.parametrize(
    ("own", "message"),
    [
        (
            {},
            r"needs credentials that may only list and read the archive: name their Secret in ui\.archive\.secretName",
        ),
        ({"secretName": "writer"}, r"ui\.archive\.secretName: writer is the Secret of the archiver"),
    ],
)
def test_the_credentials_of_the_archiver_are_refused(helm: Helm, own: Manifest, message: str) -> None:
    with pytest.raises(HelmError, match=message):
        with_archive(helm, BUCKET, archive={"enabled": True, **own})


def test_an_archive_that_the_ui_does_not_read_changes_nothing(helm: Helm) -> None:
    values = {**VALUES, "archive": {"enabled": True, **CLAIM}}
    found = {(one["kind"], one["metadata"]["name"]): one for one in helm.template(values)}
    assert found["Deployment", "allranks-ui"] == with_ui(helm)["Deployment", "allranks-ui"]


def test_the_archive_needs_a_place(helm: Helm) -> None:
    with pytest.raises(HelmError, match=r"ui\.archive\.enabled needs the place of the archive"):
        with_archive(helm, {})
