"""Groups of jobs with GPU-hours, money, goodput and time in queues."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from allranks.kube.job_codec import status_of
from allranks.views import usage
from allranks.views.usage import UsageGroup, UsedBy
from support.ui_samples import a_job, done

NOW = datetime(2026, 4, 1, 12, tzinfo=UTC)


def used(job: dict[str, Any]) -> UsedBy:
    return UsedBy(job, status_of(job), NOW)


def groups(jobs: list[dict[str, Any]], *keys: str) -> list[UsageGroup]:
    return usage.groupings(map(used, jobs), [keys])[0]


def test_groups_sum_gpu_hours_money_goodput_and_time_in_queues() -> None:
    first, second = groups([done("a"), done("b"), done("c", "vision")], "namespace")
    assert (first.name, first.jobs, first.succeeded, second.name) == ("team", 2, 2, "vision")
    assert (first.goodput, first.queued_seconds) == (0.8, 1800)
    assert first.gpu_hours == {"productive": 4, "starting": 0, "waiting": 2, "lost": 1}
    assert first.lost_gpu_hours_by_reason == {"OOMKilled": 0.75, "NodeLost": 0.25}
    assert (first.spent, first.spent_lost) == ({"EUR": 14}, {"EUR": 2})
    whole = usage.total([first, second])
    assert (whole.jobs, whole.queued_seconds, whole.goodput, whole.spent) == (3, 2700, 0.8, {"EUR": 21})


def test_a_job_counts_in_the_week_of_its_end_and_currencies_are_not_added() -> None:
    later = done("b", when="2026-03-11T10:00:00Z")
    later["status"]["cost"]["currency"] = "USD"
    weeks = groups([done("a"), later], "week")
    assert [week.name for week in weeks] == ["2026-W11", "2026-W10"]
    assert usage.total(weeks).spent == {"EUR": 7, "USD": 7}


@pytest.mark.parametrize(
    ("key", "value", "otherwise"),
    [
        ("pool", "h100", "(none)"),
        ("team", "nlp", "(none)"),
        ("label:team", "nlp", "(none)"),
        ("user", "ada@example.com", "(unknown)"),
        ("job", "a", "b"),
    ],
)
def test_jobs_are_grouped_by_what_their_objects_say(key: str, value: str, otherwise: str) -> None:
    job, other = done("a"), a_job("b", "Pending")
    job["spec"]["pool"] = "h100"
    job["metadata"]["annotations"] = {"allranks.dev/user": "ada@example.com"}
    other["metadata"]["labels"] = None
    assert [group.name for group in groups([job, other], key)] == [value, otherwise]


def test_several_keys_make_a_group_of_each_combination_sorted_by_week() -> None:
    jobs = [done("a"), done("b", "vision"), done("c", when="2026-03-11T10:00:00Z")]
    keys = [group.keys for group in groups(jobs, "namespace", "week")]
    assert keys == [
        {"namespace": "team", "week": "2026-W11"},
        {"namespace": "team", "week": "2026-W10"},
        {"namespace": "vision", "week": "2026-W10"},
    ]


def test_a_time_selects_jobs_by_their_end_and_running_jobs_by_the_present() -> None:
    jobs = list(map(used, [done("a"), a_job("b", "Running")]))

    def selected(since: datetime | None = None, until: datetime | None = None) -> list[str]:
        return [job.manifest["metadata"]["name"] for job in filter(usage.selection(since, until), jobs)]

    assert selected() == ["a", "b"]
    assert selected(since=NOW - timedelta(days=7)) == ["b"]
    assert selected(until=NOW - timedelta(days=7)) == ["a"]
    assert selected(since=jobs[0].end, until=jobs[0].end) == []


@pytest.mark.parametrize("text", ["moon", "", "namespace,", "label:", "label:a b", "week,week"])
def test_keys_that_are_none_are_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a group: use namespace|named twice"):
        usage.parse_keys(text)


def test_rows_of_a_spreadsheet_have_a_column_for_the_money_of_each_currency() -> None:
    dollars = done("b", "vision")
    dollars["status"]["cost"]["currency"] = "USD"
    titles, *rows = usage.csv_rows(
        groups([done("a"), dollars, a_job("c", "Pending", namespace="x")], "namespace"), ["namespace"]
    )
    by_name = {row[0]: dict(zip(titles, row, strict=True)) for row in rows}
    assert by_name["team"]["gpu_hours"] == 3.5
    assert (by_name["team"]["spent_EUR"], by_name["team"]["spent_USD"]) == (7, 0)
    assert (by_name["vision"]["spent_EUR"], by_name["vision"]["spent_lost_USD"]) == (0, 1)
    assert (by_name["x"]["jobs"], by_name["x"]["gpu_hours"], by_name["x"]["goodput"]) == (1, 0, None)


def test_keys_of_labels_that_people_chose_are_offered() -> None:
    labels = {"project": "x", "team": "nlp", "allranks.dev/trial": "1", "app.kubernetes.io/name": "y", "cost": "z"}
    assert usage.label_keys([{"labels": labels}, {"labels": None}, {}], most=5) == ["label:cost", "label:project"]
    assert usage.label_keys([{"labels": labels}], most=1) == ["label:cost"]


def of_two_pools() -> dict[str, Any]:
    """A job whose GPU time is divided among two pools."""
    job = done("a")
    cost = job["status"]["cost"]
    part = {"gpus": 0, "gpuSeconds": {kind: value / 4 for kind, value in cost["gpuSeconds"].items()}}
    rest = {"gpus": 0, "gpuSeconds": {kind: value * 3 / 4 for kind, value in cost["gpuSeconds"].items()}}
    spent = {kind: value / 2 for kind, value in cost["spent"].items()}
    cost["roles"] = {
        "trainer": {**part, "pool": "h100", "spent": spent},
        "rollout": {**rest, "pool": "spot", "spent": spent},
    }
    return job


def test_a_job_with_several_pools_counts_its_gpu_time_in_each_and_itself_in_the_first() -> None:
    spot, h100 = by_pool = groups([of_two_pools()], "pool")
    assert [group.name for group in by_pool] == ["spot", "h100"]
    assert (h100.jobs, spot.jobs, h100.succeeded, spot.succeeded) == (1, 0, 1, 0)
    [whole] = groups([of_two_pools()], "namespace")
    hours = sum(whole.gpu_hours.values())
    assert sum(spot.gpu_hours.values()) == pytest.approx(hours * 3 / 4)
    assert sum(h100.gpu_hours.values()) == pytest.approx(hours / 4)
    total = usage.total(by_pool)
    assert (total.jobs, total.queued_seconds, total.goodput) == (whole.jobs, whole.queued_seconds, whole.goodput)
    assert total.spent == whole.spent


def test_without_gpus_a_job_counts_in_its_own_pool_or_the_first_of_a_role() -> None:
    job, other = a_job("a", "Pending"), a_job("b", "Pending")
    job["spec"]["roles"] = {"worker": {"replicas": 1}, "ps": {"pool": "cpu"}}
    other["spec"] |= {"pool": "gpu", "roles": job["spec"]["roles"]}
    assert [group.name for group in groups([job, other], "pool")] == ["cpu", "gpu"]
