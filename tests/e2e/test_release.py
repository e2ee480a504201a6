"""The operator is killed, upgraded and removed while jobs run. No other test runs at the same time (tools/e2e.sh)."""

from __future__ import annotations

import pytest

from .jobs import SECOND_TIME, Team, training
from .release import NAMESPACE, install, uninstall

UNTIL_SIGNAL = "trap 'exit 0' USR1; trap 'exit 143' TERM; echo ready; sleep 600 & wait"


@pytest.fixture(autouse=True)
def installed(cluster):
    yield
    if cluster.ask("get", "deployment", "allranks", "-n", NAMESPACE).returncode:
        install(cluster)


def test_upgrade_and_uninstall_keep_jobs_and_CRDs_and_the_next_operator_continues(team: Team) -> None:
    job = team.start(training("running", "sh", "-c", UNTIL_SIGNAL))
    team.says(f"{job}-master-0-0", "ready")
    uid = team.get("pod", f"{job}-master-0-0")["metadata"]["uid"]
    operator = ("get", "pods", "-n", NAMESPACE, "-o", "name")
    before = team.cluster.kubectl(*operator)

    install(team.cluster, "--set=settings.logLevel=debug")
    assert team.cluster.kubectl(*operator) != before
    assert team.get("pod", f"{job}-master-0-0")["metadata"]["uid"] == uid

    uninstall(team.cluster)
    team.cluster.kubectl("wait", "--for=delete", "pods", "--all", "-n", NAMESPACE, "--timeout=300s", timeout=330)
    assert team.status(job)["phase"] == "Running"
    assert team.get("pod", f"{job}-master-0-0")["metadata"]["uid"] == uid
    team.signal(f"{job}-master-0-0", "USR1")
    team.wait(f"pod/{job}-master-0-0", "--for=jsonpath={.status.phase}=Succeeded")
    assert team.status(job)["phase"] == "Running"  # without an operator the status does not change

    install(team.cluster)
    status = team.completes(job)
    assert (status["attempt"], status["restarts"]["counted"]) == (0, 0)


def test_the_operator_may_die_during_a_restart(team: Team) -> None:
    job = team.start(training("midst", "sh", "-c", SECOND_TIME))
    team.says(f"{job}-master-0-0", "ready")
    team.signal(f"{job}-master-0-0", "USR1")
    team.cluster.kubectl("delete", "pods", "-n", NAMESPACE, "--all", "--force", "--grace-period=0")
    status = team.completes(job)
    assert (status["attempt"], status["restarts"]["counted"]) == (1, 1)
    assert status["lastFailure"]["exitCode"] == 138
