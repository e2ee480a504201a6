"""The chart agrees with the repository: CRDs, settings, version, metrics. These tests need no Helm."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import generate_latest

from allranks.api.validation import parse
from allranks.core.objects import pods
from allranks.operator.metrics import JobSample, Metrics, Sampled
from allranks.operator.settings import ENV_PREFIX, Settings
from support.helm import CHART, ROOT

EXPRESSION = re.compile(r"allranks_\w+")
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())


def test_generated_parts_are_up_to_date() -> None:
    command = [sys.executable, ROOT / "tools" / "chart.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"run `make generate`:\n{done.stdout}{done.stderr}"


def test_an_outdated_crd_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = chart_tool()
    source = next(iter(tool.crds()))
    changed = tmp_path / source.name
    changed.write_text(source.read_text().replace("served: true", "served: false"))
    assert tool.template(changed) != (CHART / "templates" / f"crd-{source.name}").read_text()


def test_template_syntax_in_a_crd_is_escaped(tmp_path: Path) -> None:
    source = tmp_path / "things.yaml"
    source.write_text("# Generated\nkind: X\nmetadata:\n  name: things.allranks.dev\nspec:\n  text: use {{ name }}\n")
    assert '  text: use {{ "{{" }} name {{ "}}" }}\n' in chart_tool().template(source)


def chart_tool() -> Any:
    spec = importlib.util.spec_from_file_location("chart_tool", ROOT / "tools" / "chart.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["chart_tool"] = module
    spec.loader.exec_module(module)
    return module


def test_every_value_is_in_the_schema_with_a_description_and_unknown_ones_are_rejected() -> None:
    def check(schema: dict[str, Any], values: dict[str, Any], path: str) -> None:
        assert schema["additionalProperties"] is False, path
        unused = {"global", "enabled"} if not path else {"claims"}
        assert set(schema["properties"]) - unused == set(values) - unused, path
        for name, value in values.items():
            child = schema["properties"][name]
            described = "description" in child
            assert described or "properties" in child, f"{path}{name}"
            if "properties" in child and not described:
                check(child, value, f"{path}{name}.")

    check(SCHEMA, VALUES, "")


SETTINGS = {
    "concurrency": "settings.concurrency",
    "request_timeout": "settings.requestTimeout",
    "watch_timeout": "settings.watchTimeout",
    "log_level": "settings.logLevel",
    "log_format": "settings.logFormat",
    "lease_seconds": "leaderElection.leaseSeconds",
    "default_pod_security": "policy.defaults.podSecurity",
    "max_pod_security": "policy.limits.podSecurity",
}
POLICY = {
    "default_ttl_seconds_after_finished": "policy.defaults.ttlSecondsAfterFinished",
    "default_active_deadline_seconds": "policy.defaults.activeDeadlineSeconds",
    "default_run_as_user": "policy.defaults.runAsUser",
    "max_active_deadline_seconds": "policy.limits.activeDeadlineSeconds",
    "max_pods": "policy.limits.pods",
}
"""Field of Settings -> the value that sets it."""


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_has_the_operators_default_and_bounds(name: str) -> None:
    setting = Settings.model_json_schema()["properties"][name]
    value, schema = VALUES, SCHEMA
    for key in SETTINGS[name].split("."):
        value, schema = value[key], schema["properties"][key]
    assert value == setting["default"]
    bounds = ("minimum", "maximum", "exclusiveMinimum", "enum")
    assert {key: schema.get(key) for key in bounds} == {key: setting.get(key) for key in bounds}


@pytest.mark.parametrize("name", POLICY)
def test_a_default_or_limit_has_the_operators_bounds_and_is_not_set(name: str) -> None:
    setting = Settings.model_json_schema()["properties"][name]
    value, schema = VALUES, SCHEMA
    for key in POLICY[name].split("."):
        value, schema = value[key], schema["properties"][key]
    assert value is setting["default"] is None
    [number] = [each for each in setting["anyOf"] if each["type"] == "integer"]
    assert [schema["minimum"], schema["maximum"]] == [number["minimum"], number["maximum"]]


def test_every_setting_is_passed_to_the_operator_and_no_other() -> None:
    passed = re.findall(rf"name: {ENV_PREFIX}(\w+)", (CHART / "templates" / "_env.tpl").read_text())
    served_by_the_frontend = {"address", "port", "probe_port", "report_port"}
    assert {name.lower() for name in passed} == set(Settings.model_fields) - served_by_the_frontend


SAMPLE = JobSample("team", "pytorch", "Pending", "Unschedulable", 60.0, {"gpu": (8, 0)})


def metrics() -> dict[str, str]:
    """Each metric of the operator -> its type."""
    meters = Metrics()
    meters.registry.register(Sampled(lambda: [SAMPLE], lambda: 0, lambda: [("jobs", 0.0)]))
    lines = generate_latest(meters.registry).decode().splitlines()
    types = dict(line.split()[2:] for line in lines if line.startswith("# TYPE "))
    return {name: kind for name, kind in types.items() if not name.endswith("_created")}


def series() -> set[str]:
    """The metric names in queries."""
    return {f"{name}_bucket" if kind == "histogram" else name for name, kind in metrics().items()}


def queries(node: Any) -> list[str]:
    """Every `expr` below."""
    if isinstance(node, dict):
        own = [node["expr"]] if isinstance(node.get("expr"), str) else []
        return own + [query for child in node.values() for query in queries(child)]
    return [query for child in node for query in queries(child)] if isinstance(node, list) else []


def dashboard() -> dict[str, Any]:
    return json.loads((CHART / "dashboards" / "allranks.json").read_text())


def test_the_dashboard_shows_every_metric_and_no_unknown_one() -> None:
    named = {name for query in queries(dashboard()) for name in EXPRESSION.findall(query)}
    assert named == series()


def test_panels_of_the_dashboard_do_not_overlap_and_have_unique_titles_and_ids() -> None:
    panels = dashboard()["panels"]
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        own = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & own, panel["title"]
        assert at["x"] + at["w"] <= 24
        cells |= own
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)


def test_alerts_use_existing_metrics_only_and_the_schema_has_every_alert() -> None:
    text = (CHART / "templates" / "_alerts.tpl").read_text()
    assert set(EXPRESSION.findall(text)) <= series() | set(metrics())
    alerts = set(re.findall(r"^- alert: (\w+)", text, re.MULTILINE))
    values = SCHEMA["properties"]["metrics"]["properties"]["rules"]["properties"]
    assert set(values["disabled"]["items"]["enum"]) == alerts


def test_the_job_in_the_notes_is_valid() -> None:
    text = (CHART / "templates" / "NOTES.txt").read_text()
    job = re.search(r"<<EOF\n(.*?)^ *EOF", text, re.DOTALL | re.MULTILINE)
    assert job
    document = yaml.safe_load(re.sub(r"\{\{.*?\}\}", "x", job[1]))
    assert document["spec"]["image"] == "x/pytorch:x", "the registry of the operator's image, and the chart's version"
    assert pods.problems(parse(document)) == []
