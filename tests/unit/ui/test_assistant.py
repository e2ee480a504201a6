"""`allranks mcp`: the tools that an assistant gets, with the client of the official SDK."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mcp.types
import pytest
import yaml
from mcp import Client, MCPError, StdioServerParameters

from allranks.kube.cluster import Where
from allranks.ui import assistant
from support.builders import manifest
from support.ui_samples import a_run, failure

READS = {"list_jobs", "report", "ranks", "events", "logs", "queues", "nodes", "validate", "plan"}
CHANGES = {"create", "suspend", "resume", "scale", "delete"}


class Person:
    """The user of a client, who answers what servers ask."""

    def __init__(self, confirms: bool | None) -> None:
        self.confirms = confirms
        """None: closes the question without an answer."""
        self.asked: list[str] = []

    async def answer(self, _context: Any, request: Any) -> mcp.types.ElicitResult:
        self.asked.append(request.message)
        if self.confirms is None:
            return mcp.types.ElicitResult(action="cancel")
        return mcp.types.ElicitResult(action="accept", content={"confirmed": self.confirms})


@pytest.fixture
def call(api, tmp_path) -> Callable[..., Any]:
    """Calls a tool of a new server. Returns its result, or the text of its error."""

    def run(tool: str, person: Person | None = None, changes: bool = True, **arguments: Any) -> Any:
        async def session() -> Any:
            server = assistant.server(
                Where(kubeconfig=str(api.kubeconfig)), all_namespaces=True, runs=tmp_path / "runs", changes=changes
            )
            asked = {"elicitation_callback": person.answer} if person else {}
            async with Client(server, **asked) as client:
                try:
                    result = await client.call_tool(tool, arguments)
                except MCPError as error:
                    return str(error)
                text = " ".join(part.text for part in result.content if isinstance(part, mcp.types.TextContent))
                structured = result.structured_content or {}
                return text if result.is_error else structured.get("result", structured)

        return asyncio.run(session())

    return run


@pytest.mark.parametrize(("changes", "expected"), [(False, READS), (True, READS | CHANGES)])
def test_tools_that_change_jobs_exist_only_if_the_user_wants_them(api, tmp_path, changes, expected):
    async def tools() -> dict[str, bool]:
        server = assistant.server(
            Where(kubeconfig=str(api.kubeconfig)), all_namespaces=True, runs=tmp_path, changes=changes
        )
        async with Client(server) as client:
            listed = (await client.list_tools()).tools
            return {tool.name: bool(tool.annotations and tool.annotations.read_only_hint) for tool in listed}

    found = asyncio.run(tools())
    assert set(found) == expected
    assert {name for name, reads in found.items() if reads} == READS


def test_a_report_has_the_cause_of_a_failure_and_a_list_its_verdict(call):
    jobs = {job["name"]: job for job in call("list_jobs")["jobs"]}
    assert (jobs["broken"]["phase"], jobs["penguins"]["progress"]) == ("Failed", "1200/5000 24%")
    report = call("report", job="team/broken")
    assert report["phase"] == "Failed"
    assert failure()["message"].splitlines()[-1] in "\n".join(report["failure"])
    assert not assistant._OMITTED & set(report)


def test_runs_of_this_machine_are_listed_without_a_cluster(tmp_path):
    a_run(tmp_path / "runs", "whales", "20260304-100000", "Failed", lastFailure=failure())

    async def session() -> Any:
        server = assistant.server(
            Where(kubeconfig=str(tmp_path / "none")), all_namespaces=False, runs=tmp_path / "runs"
        )
        async with Client(server) as client:
            listed = await client.call_tool("list_jobs", {"source": "runs"})
            refused = await client.call_tool("list_jobs", {})
            return listed.structured_content, refused

    listed, refused = asyncio.run(session())
    assert [job["name"] for job in listed["jobs"]] == ["whales"]
    assert refused.is_error
    assert "there is no such file" in refused.content[0].text


def test_ranks_events_and_wrong_names(call):
    assert [rank["rank"] for rank in call("ranks", job="team/penguins")][:2] == [0, 1]
    assert {event["reason"] for event in call("events", job="team/penguins")} == {"Started", "BackOff"}
    assert "there is no job nothing in namespace team" in call("report", job="team/nothing")
    for name in ("../jobs", "team/../x", "penguins", "team/a?b"):
        assert "String should match pattern" in call("report", job=name), name


def test_a_manifest_is_checked_here(call):
    good = call("validate", manifest=yaml.safe_dump(manifest(image="x", command=["train"])))
    assert good["valid"] is True
    bad = call("validate", manifest=yaml.safe_dump(manifest(image="x", command="train")))
    assert bad["valid"] is False
    assert bad["findings"] == ["error: spec.command: must be a list, not a string: write [train]"]


@pytest.mark.parametrize("confirms", [True, False, None])
def test_a_job_is_deleted_only_if_the_user_confirms(call, api, confirms):
    person = Person(confirms)
    answer = call("delete", person, job="team/penguins")
    assert person.asked == ["Delete job team/penguins (UID uid-penguins) and everything that it owns?"]
    assert ("penguins" in api.jobs) is (confirms is not True)
    assert ("penguins deleted" in answer) is (confirms is True)


def test_a_client_that_cannot_ask_changes_nothing(call, api):
    assert "did not declare the form elicitation capability" in call("suspend", job="team/penguins")
    assert not api.jobs["penguins"]["spec"].get("suspend")


def test_the_command_serves_an_assistant_on_standard_input(api, tmp_path: Path):
    async def session() -> Any:
        words = ["-m", "allranks", "mcp", "-A", "--kubeconfig", str(api.kubeconfig), "--root", str(tmp_path / "runs")]
        async with Client(StdioServerParameters(command=sys.executable, args=words)) as client:
            return (await client.call_tool("list_jobs", {"phase": "Failed"})).structured_content

    assert [job["name"] for job in asyncio.run(session())["jobs"]] == ["broken"]
