"""Deliveries of notifications to real servers on loopback."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from allranks.api.job import Metadata
from allranks.api.notify import Notification, Webhook
from allranks.api.pool import PoolSpec
from allranks.api.status import Condition, Failure, Status
from allranks.core.facts.model import Observed
from allranks.core.facts.policy import Policy
from allranks.operator.notification_text import job_note
from allranks.operator.notifier import Notifier, Pace
from allranks.operator.receivers import ReceiversFile
from support.builders import CLUSTER, NOW, job
from support.receivers import http_receiver, until

KEY = ("team", "job")
FAST = Pace(delays=(0, 0), timeout=60)
FAILED = Status(
    phase="Failed",
    conditions=[
        Condition(type="Failed", status="True", reason="Error", message="no restart is left", last_transition_time=NOW)
    ],
    last_failure=Failure(
        role="worker", index=1, pod="job-worker-1-0", node="n1", exit_code=1, message="<boom> & ```end", time=NOW
    ),
)


def observed(*entries: str, status: Status = FAILED, **spec: Any) -> Observed:
    return Observed(job(**spec), replace(status, notifications=list(entries)), (), NOW, CLUSTER)


class Operator:
    """A notifier with its file."""

    def __init__(self, folder: Path, content: dict[str, Any], pace: Pace) -> None:
        self.file = folder / "receivers.yaml"
        self.file.write_text(json.dumps(content))
        self.woken: list[Any] = []
        self.notifier = Notifier(ReceiversFile(str(self.file)), self.woken.append, pace)

    async def deliver(self, observed_job: Observed) -> dict[str, str]:
        """The results of all pending entries."""
        found: dict[str, str] = {}

        def over() -> bool:
            found.update(self.notifier.exchange(KEY, observed_job))
            return len(found) == len([e for e in observed_job.persisted.notifications if e.count(" ") == 1])

        await until(over)
        return found


@asynccontextmanager
async def operator(folder: Path, pace: Pace = FAST, **content: Any) -> AsyncIterator[Operator]:
    made = Operator(folder, content, pace)
    try:
        yield made
    finally:
        await made.notifier.close()


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 300))  # type: ignore[arg-type]


def test_a_cloud_event_says_what_failed_first_with_a_link(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            http_receiver() as server,
            operator(
                tmp_path,
                receivers=[
                    {"name": "bus", "type": "CloudEvents", "url": f"{server.url}/in", "headers": {"X-Key": "s"}}
                ],
                link="https://ui.example.com/jobs/{namespace}/{name}",
            ) as one,
        ):
            assert await one.deliver(observed("Failed/0 bus")) == {"Failed/0 bus": " sent"}
            assert one.woken == [KEY]
            [(path, headers, event)] = server.got
            assert (path, headers["X-Key"]) == ("/in", "s")
            assert headers["Content-Type"] == "application/cloudevents+json"
            assert (event["specversion"], event["type"]) == ("1.0", "dev.allranks.job.failed")
            assert event["id"].endswith("/Failed/0/bus")
            assert event["data"]["link"] == "https://ui.example.com/jobs/team/job"
            assert "First failure: worker-1 failed" in event["data"]["details"]
            assert "on n1" in event["data"]["details"]

    run(test)


def test_the_webhook_of_the_default_pool_is_delivered(tmp_path: Path) -> None:
    async def test() -> None:
        async with http_receiver() as server, operator(tmp_path, allowedHosts=[server.url.partition("//")[2]]) as one:
            pool = PoolSpec(notify=[Notification(webhook=Webhook(url=f"{server.url}/pool"))])
            platform = replace(CLUSTER, policy=Policy(default_pool="gpus"), pools={"gpus": pool})
            in_default_pool = replace(observed("Failed/0 webhook-p0"), platform=platform)
            assert await one.deliver(in_default_pool) == {"Failed/0 webhook-p0": " sent"}
            assert [path for path, _, _ in server.got] == ["/pool"]

    run(test)


def test_a_slack_message_is_escaped(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            http_receiver() as server,
            operator(tmp_path, receivers=[{"name": "chat", "type": "Slack", "url": server.url}]) as one,
        ):
            await one.deliver(observed("Failed/0 chat"))
            [(_, _, body)] = server.got
            assert body["text"].startswith("*team/job failed*")
            assert "&lt;boom&gt; &amp; '''end" in body["text"]

    run(test)


def test_a_receiver_that_fails_for_a_while_is_tried_again(tmp_path: Path) -> None:
    async def test() -> None:
        async with http_receiver(answers=[503, 429]) as server:
            receivers = [{"name": "bus", "type": "CloudEvents", "url": server.url}]
            async with operator(tmp_path, receivers=receivers) as one:
                assert await one.deliver(observed("Failed/0 bus")) == {"Failed/0 bus": " sent"}
            assert len({event["id"] for _, _, event in server.got}) == 1
            assert len(server.got) == 3

    run(test)


@pytest.mark.parametrize("code", [302, 400, 404])
def test_a_refusal_is_final_and_a_redirect_is_not_followed(tmp_path: Path, code: int) -> None:
    async def test() -> None:
        async with (
            http_receiver(answers=[code]) as server,
            operator(tmp_path, receivers=[{"name": "bus", "type": "CloudEvents", "url": server.url}]) as one,
        ):
            assert await one.deliver(observed("Failed/0 bus")) == {"Failed/0 bus": " failed"}
            assert [path for path, _, _ in server.got] == ["/"]

    run(test)


def test_a_receiver_that_does_not_answer_is_bounded_and_delays_no_other(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            http_receiver(hang=True) as dead,
            http_receiver() as good,
            operator(
                tmp_path,
                Pace(delays=(), timeout=60, at_once=3, most=9),
                receivers=[
                    {"name": "dead", "type": "CloudEvents", "url": dead.url},
                    {"name": "good", "type": "CloudEvents", "url": good.url},
                ],
            ) as one,
        ):
            many = observed(*(f"Hung/{number} dead" for number in range(6)), "Failed/0 good")
            assert one.notifier.exchange(KEY, many) == {}
            # The bound holds for all jobs of the namespace: what is beyond it waits.
            other = observed("Failed/0 dead")
            other = replace(other, job=other.job.model_copy(update={"metadata": Metadata(name="other", uid="other")}))
            assert one.notifier.exchange(("team", "other"), other) == {}
            assert len(one.notifier._tasks) == 7
            await until(lambda: one.notifier.exchange(KEY, many) == {"Failed/0 good": " sent"})
            await until(lambda: len(dead.got) == 2)
            assert dead.most_at_once == 2, "of three, one is for other namespaces"

    run(test)


def test_the_receiver_of_the_platform_hears_of_others_before_most_of_a_flood(tmp_path: Path) -> None:
    async def test() -> None:
        receivers = [{"name": "pager", "type": "CloudEvents"}]
        async with http_receiver() as pager, operator(tmp_path, receivers=[{**receivers[0], "url": pager.url}]) as one:
            notifier = one.notifier
            for number in range(100):
                key = ("busy", f"job-{number}")
                assert notifier.exchange(key, _named(observed("Failed/0 pager"), *key)) == {}
            other = _named(observed("Failed/0 pager"), "calm", "job")
            before = len(pager.got)
            await until(lambda: notifier.exchange(("calm", "job"), other) == {"Failed/0 pager": " sent"})
            await until(lambda: len(pager.got) == 101)
            [position] = [number for number, message in enumerate(pager.got) if "/namespaces/calm/" in str(message)]
            assert position - before < 20

    run(test)


def test_the_namespace_that_uses_most_of_the_notifications_has_a_name(tmp_path: Path) -> None:
    async def test() -> None:
        receivers = [{"name": "dead", "type": "CloudEvents"}]
        async with (
            http_receiver(hang=True) as dead,
            operator(tmp_path, Pace(timeout=60, most=8), receivers=[{**receivers[0], "url": dead.url}]) as one,
        ):
            for namespace, count in (("busy", 5), ("calm", 1)):
                for number in range(count):
                    key = (namespace, f"job-{number}")
                    one.notifier.exchange(key, _named(observed("Failed/0 dead"), *key))
            assert one.notifier.large == {"busy": 5 / 8}

    run(test)


def test_notifications_of_one_namespace_leave_room_for_others_and_those_beyond_it_wait(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            http_receiver(hang=True) as dead,
            http_receiver() as pager,
            operator(
                tmp_path,
                Pace(delays=(), timeout=60, most=8),
                receivers=[
                    {"name": "dead", "type": "CloudEvents", "url": dead.url},
                    {"name": "pager", "type": "CloudEvents", "url": pager.url},
                ],
            ) as one,
        ):
            notifier, woken = one.notifier, list[tuple[str, str]]()
            notifier._wake = woken.append
            keys = [("busy", f"job-{number}") for number in range(20)]
            jobs = {key: _named(observed("Failed/0 dead"), *key) for key in keys}
            for key in keys:
                assert notifier.exchange(key, jobs[key]) == {}
            assert len(notifier._tasks) == 6
            other = _named(observed("Failed/0 pager"), "calm", "job")
            await until(lambda: notifier.exchange(("calm", "job"), other) == {"Failed/0 pager": " sent"})
            assert len(pager.got) == 1
            woken.clear()
            next(iter(notifier._tasks.values())).cancel()  # one of the busy namespace ends
            await until(lambda: bool(woken))
            assert woken == [keys[6]], "the first that waits"
            assert notifier.exchange(keys[6], jobs[keys[6]]) == {}
            assert len(notifier._tasks) == 6

    run(test)


def _named(of: Observed, namespace: str, name: str) -> Observed:
    metadata = Metadata(name=name, namespace=namespace, uid=f"{namespace}-{name}")
    return replace(of, job=of.job.model_copy(update={"metadata": metadata}))


def test_a_try_without_an_answer_ends(tmp_path: Path) -> None:
    async def test() -> None:
        async with http_receiver(hang=True) as dead:
            receivers = [{"name": "dead", "type": "CloudEvents", "url": dead.url}]
            async with operator(tmp_path, Pace(delays=(), timeout=0.2), receivers=receivers) as one:
                assert await one.deliver(observed("Failed/0 dead")) == {"Failed/0 dead": " failed"}

    run(test)


@pytest.mark.parametrize(
    ("allowed", "result"),
    [([], " failed"), (["127.0.0.1"], " failed"), (["other:{port}"], " failed"), (["127.0.0.1:{port}"], " sent")],
)
def test_an_author_reaches_only_hosts_that_the_administrator_allows(
    tmp_path: Path, allowed: list[str], result: str
) -> None:
    async def test() -> None:
        async with http_receiver() as server:
            port = server.url.rpartition(":")[2]
            hosts = [host.format(port=port) for host in allowed]
            async with operator(tmp_path, allowedHosts=hosts) as one:
                webhook = [{"webhook": {"url": f"{server.url}/x"}}]
                found = await one.deliver(observed("Failed/0 webhook-0", notify=webhook))
                assert found == {"Failed/0 webhook-0": result}
                assert len(server.got) == (result == " sent")

    run(test)


def test_a_receiver_of_other_namespaces_is_not_used(tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            http_receiver() as server,
            operator(
                tmp_path,
                receivers=[{"name": "bus", "type": "CloudEvents", "url": server.url, "namespaces": ["other"]}],
            ) as one,
        ):
            assert await one.deliver(observed("Failed/0 bus", "Failed/0 none")) == {
                "Failed/0 bus": " failed",
                "Failed/0 none": " failed",
            }
            assert server.got == []

    run(test)


def test_an_operator_that_is_killed_delivers_the_rest_and_nothing_twice(tmp_path: Path) -> None:
    async def test() -> None:
        receiver = [{"name": "bus", "type": "CloudEvents", "url": ""}]
        async with (
            http_receiver(hang=True) as slow,
            operator(tmp_path, receivers=[{**receiver[0], "url": slow.url}]) as first,
        ):
            first.notifier.exchange(KEY, observed("Failed/0 bus"))
            await until(lambda: len(slow.got) == 1)
            sent = slow.got[0][2]["id"]
        # Killed in the middle: the next one finds the entry in the status, and the receiver knows the id.
        async with (
            http_receiver() as server,
            operator(tmp_path, receivers=[{**receiver[0], "url": server.url}]) as second,
        ):
            await second.deliver(observed("Failed/0 bus"))
            assert [event["id"] for _, _, event in server.got] == [sent]
            assert second.notifier.exchange(KEY, observed("Failed/0 bus sent")) == {}
        async with operator(tmp_path, receivers=[{**receiver[0], "url": "http://127.0.0.1:9"}]) as third:
            third.notifier.exchange(KEY, observed("Failed/0 bus sent"))
            assert third.notifier.idle

    run(test)


def test_a_changed_file_is_read_and_an_invalid_one_is_not_used(tmp_path: Path) -> None:
    made = Operator(tmp_path, {"receivers": [{"name": "a", "type": "Slack", "allJobs": ["Failed"]}]}, FAST)
    assert made.notifier.for_all("team")["Failed"] == ("a",)
    made.file.write_text("receivers: [{name: b, type: Nothing}]")
    assert made.notifier.for_all("team")["Failed"] == ("a",)
    made.file.write_text("receivers: [{name: b, type: Slack, allJobs: [Hung]}]")
    assert made.notifier.for_all("team")["Hung"] == ("b",)
    assert Notifier(ReceiversFile(""), made.woken.append).for_all("team") == {}


def test_secrets_in_the_last_lines_of_a_log_are_masked() -> None:
    failure = FAILED.last_failure
    assert failure is not None
    lines = "login with swordfish failed\nHF_TOKEN=hf_abcdef\nloss=3.25"
    status = replace(FAILED, last_failure=replace(failure, message=lines))
    env = [{"name": "DB_PASSWORD", "value": "swordfish"}, {"name": "STEPS", "value": "1000000"}]
    note = job_note(observed("Failed/0 t", status=status, env=env), "Failed/0 t", "")
    assert note.details.splitlines()[-3:] == ["login with <masked> failed", "HF_TOKEN=<masked>", "loss=3.25"]
