"""Records docs/guides/tour.md and the README's transcript: real output of commands on a real Kubernetes cluster.

As root, with a new cluster that is stopped afterwards:       .venv/bin/python tools/tour.py
With a cluster that `tools/cluster.sh up --dir DIR --nodes 2 --gpus 4` started and that has the images of tests/e2e;
allranks is installed again, and a node is stopped:           .venv/bin/python tools/tour.py --cluster DIR
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from transcripts import replaced  # noqa: E402

from e2e.cluster import Cluster  # noqa: E402
from e2e.jobs import Team, of_tests  # noqa: E402
from e2e.release import NAMESPACE, install  # noqa: E402
from images.building import build  # noqa: E402

PAGE = ROOT / "docs" / "guides" / "tour.md"
TEAM, README_TEAM = "tour", "tour-readme"
WIDTH = 120
EXAMPLE = "examples/penguins-pytorch.yaml"
JOB = "penguins-pytorch"
NOTABLE = r"^(?!.* (Scheduled|FailedScheduling|Pulled|Created|Started|Killing) )"
"""Lines of `allranks describe` except the events that every pod has."""
FAILURE = (
    r"^(Phase|Attempt|Restarts|Last|Events)|^  (pod |LAST|\||\w+-\d)|"
    r"  (Normal|Warning) +(?! |Scheduled|FailedScheduling|Pulled|Created |Started|Killing)"
)
"""Lines of `allranks describe` about a restart."""

HEAD = """\
# A tour on a cluster

The output on this page is recorded from the commands shown, on a Kubernetes cluster of two nodes that
`tools/cluster.sh` started on a machine with {cores} cores, with images that `tools/images.sh` built with the tag `e2e`.
Except for that tag, the examples are unchanged. `...` stands for omitted output. The nodes have no GPUs, but each
advertises four. `.venv/bin/python tools/tour.py`, run as root, records this page again.

The development cluster is described in [dev/cluster.md](../dev/cluster.md), the chart in
[install.md](../platform/install.md), the commands in [cluster.md](cluster.md), and the manifest in
[manifest.md](manifest.md).
"""


def main() -> None:
    """Runs all parts, then writes both pages."""
    with touring(__doc__, TEAM, README_TEAM) as tour:
        section = readme_section(tour)
        for part in PARTS:
            part(tour)
    readme = ROOT / "README.md"
    write({PAGE: tour.page(HEAD), readme: replaced(readme.read_text(), "cluster", section)})


@contextlib.contextmanager
def touring(about: str | None, *namespaces: str) -> Iterator[Tour]:
    """A tour on the cluster of the command line, or on a new one. On failure, prints the jobs, pods and events."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cluster", metavar="DIR", type=Path, help="the folder of a running cluster")
    running = parser.parse_args().cluster
    with tempfile.TemporaryDirectory() as folder, cluster_of(running) as cluster:
        install(cluster)
        tour = Tour(cluster, Path(folder))
        try:
            yield tour
        except BaseException:
            print(cluster.ask("get", "dt,pods,events", "-o", "wide", "-A").stdout, file=sys.stderr)
            raise
        finally:
            if running:
                install(cluster)
            tour.forget(*namespaces)


def write(pages: dict[Path, str]) -> None:
    """Writes all pages, or none if one contains a path of this machine."""
    for text in pages.values():
        if found := re.search(r"/(root|work|tmp|home|mnt|Users)/\S*", text):
            raise SystemExit(f"the page contains a path of this machine: {found[0]}")
    for page, text in pages.items():
        page.write_text(text)


@contextlib.contextmanager
def cluster_of(running: Path | None) -> Iterator[Cluster]:
    """The running cluster, or a new one."""
    if running:
        yield Cluster(running.resolve())
        return
    stored = [ROOT / "tools" / "image-store.sh", *build("operator", "pytorch")]
    store = Path(subprocess.run(stored, stdout=subprocess.PIPE, text=True, check=True).stdout.strip())
    with tempfile.TemporaryDirectory(dir=store.parent) as folder:
        cluster = Cluster(Path(folder) / "cluster")
        try:
            cluster.up("--with", "node", "--nodes", "2", "--gpus", "4", "--store", str(store))
            yield cluster
        finally:
            cluster.down()


class Tour:
    """Runs the commands of a page in a folder with the repository's examples, and collects their output."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.team = Team(cluster, TEAM)
        self.text: list[str] = []
        shutil.copy(cluster.kubeconfig, folder / "kubeconfig")
        (folder / "examples").mkdir()
        (folder / EXAMPLE).write_text(of_tests((ROOT / EXAMPLE).read_text()))
        helm = subprocess.run([ROOT / "tools" / "helm.sh"], stdout=subprocess.PIPE, text=True, check=True)
        path = [str(cluster.folder / "bin"), helm.stdout.strip(), str(Path(sys.executable).parent), os.environ["PATH"]]
        self.env = {**os.environ, "KUBECONFIG": str(folder / "kubeconfig"), "PATH": ":".join(path), "NO_COLOR": "1"}
        self.env |= {"COLUMNS": "200"}
        self.forget(TEAM, README_TEAM)

    def forget(self, *namespaces: str) -> None:
        self.cluster.kubectl("delete", "namespace", *namespaces, "--ignore-not-found", timeout=180)

    def tell(self, *paragraphs: str) -> None:
        self.text += [textwrap.fill(paragraph, WIDTH, break_on_hyphens=False) + "\n" for paragraph in paragraphs]

    def show(self, *commands: str, only: str = ".") -> None:
        """Runs the commands one after the other."""
        self.consoles(*((command, self.run(command)) for command in commands), only=only)

    def consoles(self, *blocks: tuple[str, str], only: str = ".") -> None:
        self.text.append(console(*blocks, only=only) + "\n")

    def run(self, command: str, seconds: float = 600) -> str:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{command}: {done.stdout}")
        return done.stdout

    @contextlib.contextmanager
    def watched(self, command: str, last: str) -> Iterator[Path]:
        """Runs a command during the `with` block, and then until its output, in the yielded file, contains `last`."""
        file = self.folder / "watched"
        with file.open("w") as out:
            process = subprocess.Popen(["bash", "-c", f"exec {command}"], cwd=self.folder, env=self.env, stdout=out)
        try:
            yield file
            until(lambda: last in file.read_text(), f"{last!r} of {command}")
        finally:
            process.terminate()
            process.wait(15)

    def page(self, head: str) -> str:
        head = head.format(cores=os.cpu_count())
        return head + "\n" + "\n".join(self.text)


def until(happened: Callable[[], bool], what: str, seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {seconds} s: {what}")
        time.sleep(0.1)


def excerpt(said: str, only: str) -> list[str]:
    """The matching lines, shortened to WIDTH. `...` stands for omitted output."""
    out: list[str] = []
    for line in said.rstrip().splitlines():
        if re.search(only, line):
            whole = line.rstrip()
            out.append(whole if len(whole) <= WIDTH else f"{whole[: WIDTH - 4].rstrip()} ...")
        elif out[-1:] != ["..."]:
            out.append("...")
    return out


def console(*blocks: tuple[str, str], only: str = ".") -> str:
    """Commands with the lines of their output that `only` matches."""
    lines = [line for command, said in blocks for line in (f"$ {command}", *excerpt(said, only))]
    return "\n".join(["```console", *lines, "```"])


def new_team(name: str) -> tuple[str, ...]:
    return (
        f"kubectl create namespace {name}",
        f"kubectl label namespace {name} pod-security.kubernetes.io/enforce=restricted",
        f"kubectl config set-context --current --namespace={name}",
    )


def installed(tour: Tour) -> None:
    tour.tell("## The operator")
    tour.show("kubectl version", "allranks --version")
    tour.tell("One chart installs the CRDs, the operator and its roles.")
    helm = f"helm upgrade --install allranks charts/allranks --namespace {NAMESPACE} --create-namespace --wait"
    notes = f"helm get notes allranks --namespace {NAMESPACE}"
    tour.text.append(f"```zsh\n{helm}\n```\n")
    tour.consoles((notes, tour.run(notes)), only="installed as|It serves|^NOTES")
    tour.show(f"kubectl get pods --namespace {NAMESPACE}")


def trained(tour: Tour) -> None:
    tour.tell("## A job", "The namespace admits only pods that satisfy the restricted Pod Security Standard:")
    tour.show(*new_team(TEAM))
    apply, watch, pods = f"kubectl apply -f {EXAMPLE}", "kubectl get dt -w", "kubectl get pods -o wide"
    wait = f"kubectl wait --for=condition=Complete dt/{JOB} --timeout=5m"
    applied = tour.run(apply)
    with tour.watched(watch, "Succeeded") as file:
        tour.team.attempt(JOB, 0)
        ran = tour.run(pods)
        waited = tour.run(wait)
    tour.consoles((apply, applied), (watch, file.read_text()))
    tour.tell("Meanwhile, in another terminal:")
    tour.consoles((pods, ran), (wait, waited))
    tour.tell("The loss falls:")
    tour.show(f"kubectl logs {JOB}-worker-0-0", only="rank 0|epoch (1|2|3|10|20)/|saved")
    tour.tell(
        "The claim with the checkpoints is in the same file. It is deleted with the job here, so that the next job "
        "starts from the beginning:"
    )
    tour.show(f"kubectl delete -f {EXAMPLE}")


def named(tour: Tour) -> None:
    tour.tell("## Names", "The same job is submitted again, with other arguments, by the command of allranks:")
    tour.show(f"allranks submit {EXAMPLE} --set 'args=[--epochs=12, --pause=1]'")
    tour.team.attempt(JOB, 0)
    tour.tell("Every rank has a DNS name, and every rank has the name of the first rank in a variable:")
    resolve = f"kubectl exec {JOB}-worker-1-0 -- sh -c 'echo $MASTER_ADDR; getent hosts $MASTER_ADDR'"
    tour.show(resolve, f"kubectl get pod {JOB}-worker-0-0 -o custom-columns=IP:.status.podIP")


def killed(tour: Tour) -> None:
    tour.tell(
        "## A rank is killed",
        "After four epochs, the training process of rank 1 (the child of its torchrun) receives SIGKILL:",
    )
    tour.team.says(f"{JOB}-worker-0-0", "epoch 4/12")
    with tour.watched("kubectl get dt -w", "Succeeded") as file:
        kill = f"kubectl exec {JOB}-worker-1-0 -- sh -c 'kill -9 $(cat /proc/1/task/1/children)'"
        tour.show(kill)
        tour.team.attempt(JOB, 1)
        tour.team.says(f"{JOB}-worker-0-1", "epoch 6/12")
        described = tour.run(f"allranks describe {JOB}")
        logged = tour.run(f"kubectl logs {JOB}-worker-0-1")
        waited = tour.run(f"allranks wait {JOB}")
    tour.tell("All ranks restarted once, and the root cause is shown:")
    tour.consoles(("kubectl get dt -w", file.read_text()))
    tour.consoles((f"allranks describe {JOB}", described), only=NOTABLE)
    tour.tell("The new attempt resumed from the checkpoint and completed:")
    tour.consoles((f"kubectl logs {JOB}-worker-0-1", logged), (f"allranks wait {JOB}", waited))


def too_big(tour: Tour) -> None:
    name = "too-big"
    tour.tell("## More GPUs than there are", "The job waits, and shows the message of the scheduler:")
    tour.show(
        f"allranks submit {EXAMPLE} --set metadata.name={name} --set 'resources={{limits: {{nvidia.com/gpu: 8}}}}'"
    )
    tour.team.reports(name, "Insufficient nvidia.com/gpu")
    tour.show("kubectl get dt -o wide")
    tour.show(
        f"allranks describe {name}",
        only="^(Name|Phase|Conditions|Pods)|^  (TYPE|RANK|Running|Restarting|Complete|Pending|Sch|\\d)",
    )
    tour.show(f"allranks delete {name}")


def lost(tour: Tour) -> None:
    """Stops a node that does not run the operator."""
    operator = tour.cluster.kubectl("get", "pods", "-n", NAMESPACE, "-o", "jsonpath={.items[0].spec.nodeName}")
    [node] = {"node-1", "node-2"} - {operator}
    try:
        lose(tour, node)
    except BaseException:
        tour.cluster.script("start", node)
        raise


def lose(tour: Tour, node: str) -> None:
    text = "This job trains for more epochs. The claim was kept, so it resumes from the checkpoint of the previous job."
    tour.tell("## A node is lost", text)
    tour.show(f"allranks delete {JOB} --wait", f"allranks submit {EXAMPLE} --set 'args=[--epochs=24, --pause=1]'")
    begun = tour.team.says(f"{JOB}-worker-0-0", "epoch 14/24")
    pods = "kubectl get pods -o wide"
    placed = tour.run(pods)
    lost = re.findall(rf"^(\S+) .* {node} ", placed, re.MULTILINE)
    if not lost:
        raise SystemExit(f"the scheduler put no rank on {node}")
    tour.consoles((f"kubectl logs {JOB}-worker-0-0", begun), (pods, placed))
    tour.tell(
        f"{node} loses power. Kubernetes detects this after about 40 s, and evicts the pods on the unreachable node "
        "30 s later."
    )
    watch = "kubectl get dt -w"
    with tour.watched(watch, "Succeeded") as file:
        stopped = tour.cluster.script("stop", node)
        if stopped.returncode:
            raise SystemExit(stopped.stderr)
        tour.team.wait(f"dt/{JOB}", "--for=jsonpath={.status.restarts.disruptions}=1")
        tour.team.wait(f"dt/{JOB}", "--for=condition=Running")
        nodes, replaced_on = tour.run("kubectl get nodes"), tour.run(pods)
        described = tour.run(f"allranks describe {JOB}")
        status = tour.team.completes(JOB)
    tour.consoles((f"tools/cluster.sh stop {node}", stopped.stdout), (watch, file.read_text()))
    tour.tell("Once the new attempt ran:")
    tour.consoles(("kubectl get nodes", nodes), (pods, replaced_on))
    tour.consoles((f"allranks describe {JOB}", described), only=FAILURE)
    text = "The loss of a node is a disruption, so the restart is not counted."
    if status["restarts"]["counted"]:
        text += (
            " Before it was detected, a rank on the other node failed because of the lost peers: that restart counts."
        )
    tour.tell(f"{text} The new attempt resumed from the last checkpoint.")
    tour.show(
        f"kubectl get dt {JOB} -o custom-columns=RESTARTS:.status.restarts",
        f"kubectl logs {JOB}-worker-0-{status['attempt']} | grep resumed",
    )
    tour.tell("The node returns, and its old pods are deleted:")
    started = tour.cluster.script("start", node)
    commands = [f"kubectl wait --for=condition=Ready node/{node} --timeout=1m"]
    commands += [f"kubectl wait --for=delete pod/{lost[0]} --timeout=2m", "kubectl get pods"]
    tour.consoles(
        (f"tools/cluster.sh start {node}", started.stdout), *((command, tour.run(command)) for command in commands)
    )


def removed(tour: Tour) -> None:
    tour.tell("## Uninstall", "The operator is uninstalled; CRDs, jobs and their pods are kept:")
    tour.show(
        f"helm uninstall allranks --namespace {NAMESPACE} --wait",
        f"kubectl wait --for=delete pods --all --namespace {NAMESPACE} --timeout=1m",
        f"kubectl get pods --namespace {NAMESPACE}",
        "kubectl get crds -o name | grep allranks",
        "kubectl get dt",
    )
    tour.tell(
        "Kubernetes deletes the objects that a job owns. Only the claim remains, because the job does not own it."
    )
    tour.show(
        f"kubectl delete dt {JOB} --cascade=foreground",
        "kubectl get dt,pods,services,secrets,pvc",
    )


def readme_section(tour: Tour) -> str:
    """Runs the manifest of the README, and deletes one of its pods."""
    job, victim = "penguins", "penguins-worker-1-0"
    found = re.search(r"^## A job\n+```yaml\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert found
    (tour.folder / "job.yaml").write_text(of_tests(found[1]))
    for command in new_team(README_TEAM):
        tour.run(command)
    apply, watch, delete = "kubectl apply -f job.yaml", "kubectl get dt -w", f"kubectl delete pod {victim}"
    team = Team(tour.cluster, README_TEAM)
    applied = tour.run(apply)
    with tour.watched(watch, "Succeeded") as file:
        team.attempt(job, 0)
        deleted = tour.run(delete)
        tour.run(f"kubectl wait --for=condition=Complete dt/{job} --timeout=5m")
    return console((apply, applied), (watch, file.read_text()), (delete, deleted))


PARTS = [installed, trained, named, killed, too_big, lost, removed]

if __name__ == "__main__":
    main()
