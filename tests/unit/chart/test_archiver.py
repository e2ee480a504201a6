"""The archiver of the chart: a Deployment of its own, restricted, which reads jobs, pods and logs and changes none."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from allranks.cli.commands.archiver import archiver
from support.helm import CHART, Helm, HelmError, Manifest

pytestmark = pytest.mark.cluster

Objects = dict[tuple[str, str], Manifest]
BUCKET = "s3://team/history"
NAME = "allranks-archiver"


def with_archive(helm: Helm, values: Manifest | None = None, **archive: Any) -> Objects:
    place = archive if "claim" in archive else {"url": BUCKET, **archive}
    made = helm.template({"archive": {"enabled": True, **place}, **(values or {})})
    return {(one["kind"], one["metadata"]["name"]): one for one in made}


def pod_of(objects: Objects) -> Manifest:
    found: Manifest = objects["Deployment", NAME]["spec"]["template"]["spec"]
    return found


def variables(objects: Objects) -> dict[str, str]:
    [container] = pod_of(objects)["containers"]
    return {one["name"]: one["value"] for one in container["env"]}


def test_the_archiver_is_off_unless_enabled_and_changes_nothing_else(helm: Helm) -> None:
    values = {"networkPolicy": {"enabled": True}, "metrics": {"monitor": {"kind": "ServiceMonitor"}}}
    without = {(one["kind"], one["metadata"]["name"]): one for one in helm.template(values)}
    assert not [key for key in without if "archiver" in key[1]]
    found = with_archive(helm, values)
    added = found.keys() - without.keys()
    assert added == {
        *((kind, NAME) for kind in ("ServiceAccount", "Deployment", "NetworkPolicy", "PodMonitor")),
        *((kind, "sys:allranks-archiver") for kind in ("ClusterRole", "ClusterRoleBinding")),
    }
    assert {key: found[key] for key in without} == without
    for key in added:
        assert found[key]["metadata"]["labels"]["app.kubernetes.io/component"] == "archiver"
        assert found[key]["metadata"].get("namespace") == (None if key[0].startswith("Cluster") else "sys")


def test_it_reads_jobs_sweeps_pods_and_logs_and_writes_events_only(helm: Helm) -> None:
    rights = {
        resource: set(rule["verbs"])
        for rule in with_archive(helm)["ClusterRole", "sys:allranks-archiver"]["rules"]
        for resource in rule["resources"]
    }
    assert rights == {
        "distributedtrainings": {"get", "list", "watch"},
        "trainingsweeps": {"get", "list", "watch"},
        "pods": {"list", "watch"},
        "pods/log": {"get"},
        "events": {"list", "create", "patch"},
    }


def test_a_release_for_namespaces_has_a_role_in_each_and_none_elsewhere(helm: Helm) -> None:
    made = helm.template({"namespaces": ["team-a", "team-b"], "archive": {"enabled": True, "url": BUCKET}})
    own = [one for one in made if one["metadata"]["labels"].get("app.kubernetes.io/component") == "archiver"]
    assert sorted((one["kind"], one["metadata"]["namespace"]) for one in own if "Role" in one["kind"]) == [
        ("Role", "team-a"),
        ("Role", "team-b"),
        ("RoleBinding", "team-a"),
        ("RoleBinding", "team-b"),
    ]
    for binding in (one for one in own if one["kind"] == "RoleBinding"):
        assert binding["roleRef"]["name"] == NAME
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": NAME, "namespace": "sys"}]
    [deployment] = [one for one in own if one["kind"] == "Deployment"]
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    assert {"name": "ALLRANKS_NAMESPACES", "value": "team-a,team-b"} in container["env"]
    without = with_archive(helm, {"rbac": {"create": False}})
    assert not [key for key in without if "Role" in key[0] and "archiver" in key[1]]


def test_it_may_get_secrets_in_the_namespaces_that_are_named_and_nowhere_else(helm: Helm) -> None:
    found = with_archive(helm, secretNamespaces=["team-a", "team-b"])
    rules = [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]
    made = helm.template({"archive": {"enabled": True, "url": BUCKET, "secretNamespaces": ["team-a", "team-b"]}})
    roles = [one for one in made if one["kind"] == "Role" and one["metadata"]["name"] == f"{NAME}-secrets"]
    assert [(one["metadata"]["namespace"], one["rules"]) for one in roles] == [("team-a", rules), ("team-b", rules)]
    bindings = [one for one in made if one["kind"] == "RoleBinding" and one["metadata"]["name"] == f"{NAME}-secrets"]
    assert [one["metadata"]["namespace"] for one in bindings] == ["team-a", "team-b"]
    for one in bindings:
        assert one["roleRef"] == {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": f"{NAME}-secrets"}
        assert one["subjects"] == [{"kind": "ServiceAccount", "name": NAME, "namespace": "sys"}]
    without = with_archive(helm)
    assert found.keys() - without.keys() == {("Role", f"{NAME}-secrets"), ("RoleBinding", f"{NAME}-secrets")}
    assert not [
        one
        for one in without.values()
        if one["metadata"]["labels"].get("app.kubernetes.io/component") == "archiver"
        for rule in one.get("rules", ())
        if "secrets" in rule["resources"]
    ]
    without = with_archive(helm, {"rbac": {"create": False}}, secretNamespaces=["team-a"])
    assert ("Role", f"{NAME}-secrets") not in without


def test_the_manifest_in_the_documentation_grants_what_the_chart_grants(helm: Helm) -> None:
    page = (CHART.parents[1] / "docs/platform/archive.md").read_text()
    [manifest] = re.findall(r"^```yaml\n(# secrets-of-jobs\.yaml\n.*?)^```", page, re.M | re.S)
    role, binding = yaml.safe_load_all(manifest)
    found = with_archive(helm, secretNamespaces=["team"])
    granted = found["Role", f"{NAME}-secrets"]["rules"]
    assert [{key: value for key, value in rule.items() if key != "resourceNames"} for rule in role["rules"]] == granted
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    [subject] = binding["subjects"]
    assert (subject["kind"], subject["name"]) == ("ServiceAccount", NAME)


def test_the_pod_is_restricted_and_has_the_token_of_its_own_account(helm: Helm) -> None:
    found = with_archive(helm, secretName="s3-login", serviceAccount={"annotations": {"role": "writer"}})
    spec = pod_of(found)
    assert spec["serviceAccountName"] == NAME
    assert spec["automountServiceAccountToken"] is True
    assert found["ServiceAccount", NAME]["metadata"]["annotations"] == {"role": "writer"}
    assert found["ClusterRoleBinding", "sys:allranks-archiver"]["subjects"] == [
        {"kind": "ServiceAccount", "name": NAME, "namespace": "sys"}
    ]
    assert spec["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    [container] = spec["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert container["resources"]["limits"]["memory"] == "1Gi"
    assert container["envFrom"] == [{"secretRef": {"name": "s3-login"}}]
    assert all(volume["emptyDir"]["sizeLimit"] for volume in spec["volumes"])


def test_the_variables_are_options_of_the_command(helm: Helm) -> None:
    found = with_archive(helm, maxBytes="50Gi", logBytes="1Mi", logs=100000 // 100, maxAgeDays=0)
    [container] = pod_of(found)["containers"]
    assert container["command"] == ["allranks", "archiver"]
    env = variables(found)
    assert env["ALLRANKS_ARCHIVE"] == BUCKET
    options = {option.envvar: option for option in archiver.params if getattr(option, "envvar", None)}
    assert set(env) <= set(options)
    context = archiver.make_context("archiver", ["--spool", "/"], auto_envvar_prefix=None, resilient_parsing=True)
    read = {name: options[name].type_cast_value(context, env[name]) for name in env if name != "ALLRANKS_ARCHIVE_SPOOL"}
    assert read["ALLRANKS_ARCHIVE_LOG_BYTES"] == 1 << 20
    assert read["ALLRANKS_ARCHIVE_MAX_BYTES"] == 50 << 30
    assert read["ALLRANKS_ARCHIVE_LOGS"] == 1000
    assert read["ALLRANKS_ARCHIVE_MAX_AGE_DAYS"] == 0
    assert read["ALLRANKS_PORT"] == container["ports"][0]["containerPort"]
    assert "ALLRANKS_ARCHIVE_MAX_BYTES" not in variables(with_archive(helm))
    for probe, path in (("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        assert container[probe]["httpGet"] == {"path": path, "port": "http"}


def test_a_claim_is_mounted_and_its_files_belong_to_a_group_of_the_pod(helm: Helm) -> None:
    found = with_archive(helm, claim="history")
    spec = pod_of(found)
    assert variables(found)["ALLRANKS_ARCHIVE"] == "/archive"
    assert {"name": "archive", "mountPath": "/archive"} in spec["containers"][0]["volumeMounts"]
    assert {"name": "archive", "persistentVolumeClaim": {"claimName": "history"}} in spec["volumes"]
    assert spec["securityContext"]["fsGroup"] == 65532
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert found["Deployment", NAME]["spec"]["strategy"] == {"type": "Recreate"}
    assert "fsGroup" not in pod_of(with_archive(helm, claim="history", fsGroup=None))["securityContext"]


def test_the_spool_has_room_for_the_logs_that_are_read_at_the_same_time(helm: Helm) -> None:
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())["archive"]
    assert (defaults["logBytes"], defaults["spoolSize"]) == ("4Mi", "3Gi")
    assert 2 * defaults["logs"] * (4 << 20) < 3 << 30
    [volume] = [one for one in pod_of(with_archive(helm))["volumes"] if one["name"] == "spool"]
    assert volume["emptyDir"]["sizeLimit"] == "3Gi"


def test_it_reaches_the_api_server_and_the_object_store_and_only_metrics_are_scraped(helm: Helm) -> None:
    peer = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    values = {"networkPolicy": {"enabled": True, "metricsFrom": [peer]}}
    policy = with_archive(helm, values, ports=[9000])["NetworkPolicy", NAME]["spec"]
    assert policy["ingress"] == [{"ports": [{"port": "http", "protocol": "TCP"}], "from": [peer]}]
    assert {port["port"] for rule in policy["egress"] for port in rule["ports"]} == {53, 443, 6443, 9000}
    policy = with_archive(helm, {"networkPolicy": {"enabled": True}}, claim="history")["NetworkPolicy", NAME]["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert "ingress" not in policy
    assert {port["port"] for rule in policy["egress"] for port in rule["ports"]} == {53, 443, 6443}


def test_selectors_match_the_archiver_and_no_other_pod(helm: Helm) -> None:
    values = {
        "networkPolicy": {"enabled": True},
        "metrics": {"monitor": {"kind": "PodMonitor", "labels": {"team": "a"}}},
        "ui": {"enabled": True},
    }
    found = with_archive(helm, values)
    labels = {
        name: found["Deployment", name]["spec"]["template"]["metadata"]["labels"]
        for name in ("allranks", "allranks-ui", NAME)
    }
    own = found["Deployment", NAME]["spec"]["selector"]["matchLabels"]
    assert found["PodMonitor", NAME]["spec"]["selector"]["matchLabels"] == own
    assert found["PodMonitor", NAME]["metadata"]["labels"]["team"] == "a"
    assert found["NetworkPolicy", NAME]["spec"]["podSelector"]["matchLabels"] == own
    assert [name for name, of in labels.items() if own.items() <= of.items()] == [NAME]
    for kind in ("Service", "NetworkPolicy", "Deployment"):
        spec = found[kind, "allranks"]["spec"]
        selector = spec.get("selector") or spec["podSelector"]
        assert not selector.get("matchLabels", selector).items() <= labels[NAME].items()


def test_the_image_is_that_of_the_values(helm: Helm) -> None:
    digest = "sha256:" + "0" * 64
    found = with_archive(helm, image={"repository": "mirror.example/archiver", "digest": digest})
    assert pod_of(found)["containers"][0]["image"] == f"mirror.example/archiver@{digest}"
    found = with_archive(helm, {"global": {"imageRegistry": "mirror.example"}}, image={"tag": "1.2.3"})
    assert pod_of(found)["containers"][0]["image"] == "mirror.example/allranks/archiver:1.2.3"


@pytest.mark.parametrize(
    ("archive", "message"),
    [
        ({}, "set either archive.claim or archive.url, not both"),
        ({"claim": "a", "url": BUCKET}, "set either archive.claim or archive.url, not both"),
        ({"url": "https://somewhere"}, "/archive/url.*does not match pattern"),
        ({"url": BUCKET, "logBytes": "4 MB"}, "/archive/logBytes.*does not match pattern"),
        ({"url": BUCKET, "maxAgeDays": -1}, "/archive/maxAgeDays.*minimum"),
        ({"url": BUCKET, "logs": 3}, "/archive/logs.*minimum"),
        ({"url": BUCKET, "secretNamespaces": ["a/b"]}, "/archive/secretNamespaces/0.*does not match pattern"),
    ],
)
def test_bad_values_are_rejected_with_a_message_that_names_them(archive: Manifest, message: str, helm: Helm) -> None:
    with pytest.raises(HelmError, match=message):
        helm.template({"archive": {"enabled": True, **archive}})


def test_secrets_of_a_namespace_that_is_not_served_are_refused(helm: Helm) -> None:
    values = {"namespaces": ["a"], "archive": {"enabled": True, "url": BUCKET, "secretNamespaces": ["a", "b"]}}
    with pytest.raises(HelmError, match=r"archive\.secretNamespaces: b is not one of `namespaces`"):
        helm.template(values)


def test_values_in_the_documentation_are_valid(helm: Helm) -> None:
    page = (CHART.parents[1] / "docs/platform/archive.md").read_text()
    [values] = re.findall(r"^```yaml\n(# values\.yaml\n.*?)^```", page, re.M | re.S)
    made = helm.template(yaml.safe_load(values))
    assert [one for one in made if one["metadata"]["name"] == NAME and one["kind"] == "Deployment"]


def test_the_documentation_lists_the_rights(helm: Helm) -> None:
    page = (CHART.parents[1] / "docs/platform/archive.md").read_text().partition("its rights | verbs")[2]
    names = {"jobs": "distributedtrainings", "sweeps": "trainingsweeps", "logs of pods": "pods/log", "Events": "events"}
    described = {
        names.get(what, what): set(re.findall(r"`(\w+)`", verbs))
        for what, verbs in re.findall(r"^\| ([\w ]+) \| ((?:`\w+`(?:, )?)+) \|", page, re.M)
    }
    assert described == {
        resource: set(rule["verbs"])
        for rule in with_archive(helm)["ClusterRole", "sys:allranks-archiver"]["rules"]
        for resource in rule["resources"]
    }


def test_the_notes_say_where_the_archive_is(helm4: Helm) -> None:
    for archive, text in (({"url": BUCKET}, f"archived in {BUCKET}."), ({"claim": "a"}, "archived in the claim a.")):
        values = {"archive": {"enabled": True, **archive}}
        notes = helm4("install", "allranks", str(CHART), "--namespace=sys", "--dry-run=client", values=values)
        notes = notes.partition("NOTES:")[2]
        assert text in notes
        assert "deploy/allranks-archiver -- allranks get --all -n default" in notes
