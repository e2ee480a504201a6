"""The pages for platform teams agree with the chart, the images and the policy."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import yaml

from allranks.core.facts.policy import ANNOTATION_PREFIX, Policy

from .test_docs import BLOCK, ROOT

PLATFORM = ROOT / "docs" / "platform"
CHART = ROOT / "charts" / "allranks"
IMAGE = re.compile(r"^\s*(?:- )?image: (\S+)$", re.MULTILINE)


def repository(image: str) -> str:
    """The image without tag and digest."""
    return re.sub(r"(@.*|:[^/:]*)$", "", image)


def used_images() -> set[str]:
    """Repositories of all images that the chart, the examples and the builds use."""
    examples = [path.read_text() for path in ROOT.glob("examples/**/*.yaml")]
    bases = [path.read_text() for path in ROOT.glob("images/*/Dockerfile")]
    return {
        yaml.safe_load((CHART / "values.yaml").read_text())["image"]["repository"],
        *(f"ghcr.io/allranks/{path.parent.name}" for path in ROOT.glob("images/*/Dockerfile")),
        *(repository(image) for text in examples for image in IMAGE.findall(text)),
        *(repository(image) for text in bases for image in re.findall(r"^ARG BASE_IMAGE=(\S+)", text, re.MULTILINE)),
    }


def test_the_page_about_air_gaps_lists_every_image() -> None:
    page = (PLATFORM / "air-gap.md").read_text()
    table = page.partition("<!-- images -->")[2].partition("<!-- /images -->")[0]
    assert set(re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)) == used_images()


def test_every_image_of_a_pod_in_the_charts_templates_is_one_of_the_values() -> None:
    own = (f'include "allranks.imageOf" (list . .Values.{part}.image)' for part in ("ui", "archive"))
    allowed = {'include "allranks.image" .', *own}
    for path in sorted((CHART / "templates").rglob("*.yaml")):
        if not path.name.startswith("crd-"):
            for image in IMAGE.findall(path.read_text()):
                raise AssertionError(f"{path.name}: {image}")
            for line in re.findall(r"^ +image: .*", path.read_text(), re.MULTILINE):
                assert line.strip() in {f"image: {{{{ {image} | quote }}}}" for image in allowed}, path.name


def test_every_alert_has_a_section_in_the_runbooks() -> None:
    alerts = re.findall(r"^- alert: (\w+)", (CHART / "templates" / "_alerts.tpl").read_text(), re.MULTILINE)
    assert alerts
    page = BLOCK.sub("", (PLATFORM / "runbooks.md").read_text())
    assert sorted(re.findall(r"^## (.*)", page, re.MULTILINE)) == sorted(alerts)


def test_the_runbooks_are_where_the_chart_says() -> None:
    url = yaml.safe_load((CHART / "values.yaml").read_text())["metrics"]["rules"]["runbookUrl"]
    home = yaml.safe_load((CHART / "Chart.yaml").read_text())["home"]
    assert url.startswith(f"{home}/")
    assert (ROOT / "docs" / Path(url.removeprefix(f"{home}/"))).with_suffix(".md").exists()


def test_the_page_about_teams_lists_every_annotation_and_its_value_in_the_chart() -> None:
    page = (PLATFORM / "tenants.md").read_text()
    assert ANNOTATION_PREFIX in page
    rows = dict(re.findall(r"^\| `([\w-]+)` \| `(policy\.[\w.]+)` \|", page, re.MULTILINE))
    names = {each.name.replace("_", "-") for each in dataclasses.fields(Policy) if each.name != "sources"}
    assert set(rows) == names
    for path in rows.values():
        value = yaml.safe_load((CHART / "values.yaml").read_text())
        for key in path.split("."):
            assert key in value, path
            value = value[key]


def test_the_message_about_a_limit_is_the_one_that_is_documented() -> None:
    from allranks.core.facts import limits
    from allranks.core.facts.policy import for_namespace
    from support.builders import CLUSTER, job

    annotations = {f"{ANNOTATION_PREFIX}max-pods": "256"}
    platform = dataclasses.replace(CLUSTER, policy=for_namespace(Policy(), "vision", annotations))
    [(path, text)] = limits.violations(job(roles={"worker": 512}), platform)
    assert f"    {path}: {text}\n" in (PLATFORM / "tenants.md").read_text()
