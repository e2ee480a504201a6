"""Makes docs/tour.md and the README's section on a cluster: real output of commands on a real Kubernetes.

As root, with a cluster of its own that is ended afterwards:  .venv/bin/python tools/tour.py
On one that `tools/cluster.sh up --dir DIR --nodes 2 --gpus 4` started, that has the images of tests/e2e, and in which
allranks may be installed anew and a node may be lost:        .venv/bin/python tools/tour.py --cluster DIR
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

from readme import replaced  # noqa: E402

from e2e.cluster import Cluster  # noqa: E402
from e2e.jobs import Team, of_tests  # noqa: E402
from e2e.release import NAMESPACE, install  # noqa: E402
from images.building import build  # noqa: E402

PAGE = ROOT / "docs" / "tour.md"
TEAM, README_TEAM = "tour", "tour-readme"
WIDTH = 120
EXAMPLE = "examples/penguins-pytorch.yaml"
JOB = "penguins-pytorch"
NOTABLE = r"^(?!.* (Scheduled|FailedScheduling|Pulled|Created|Started|Killing) )"
"""Lines of `allranks describe` but for the events that every pod has."""
FAILURE = (
    r"^(Phase|Attempt|Restarts|Last|Events)|^  (pod |LAST|\||\w+-\d)|"
    r"  (Normal|Warning) +(?! |Scheduled|FailedScheduling|Pulled|Created |Started|Killing)"
)
"""Those that tell of a restart."""

HEAD = """\
# A tour on a cluster

Everything below was printed by the commands that are shown, on a Kubernetes of two nodes that `tools/cluster.sh` made
of a machine with {cores} cores, with images that `tools/images.sh` built under the tag `e2e`. Beyond that tag the
examples are unchanged. Where you see `...`, lines are cut or left out. No node has a GPU; each says that it has four.
`.venv/bin/python tools/tour.py`, as root, makes this page anew.

The cluster is that of [dev-cluster.md](dev-cluster.md); [install.md](install.md) tells more of the chart,
[cluster.md](cluster.md) of allranks' own commands, [manifest.md](manifest.md) of what the job says.
"""


def main() -> None:
    """Goes the tour, then writes both pages."""
    with touring(__doc__, TEAM, README_TEAM) as tour:
        section = readme_section(tour)
        for part in PARTS:
            part(tour)
    readme = ROOT / "README.md"
    write({PAGE: tour.page(HEAD), readme: replaced(readme.read_text(), "cluster", section)})


@contextlib.contextmanager
def touring(about: str | None, *namespaces: str) -> Iterator[Tour]:
    """On the cluster that the command line names, or a new one. Of one that fails, what the cluster knows is told."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cluster", metavar="DIR", type=Path, help="the folder of a cluster that runs")
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
    """All of them, or none where one would tell of this machine's own folders."""
    for text in pages.values():
        if found := re.search(r"/(root|work|tmp|home|mnt|Users)/\S*", text):
            raise SystemExit(f"a path of this machine, not written: {found[0]}")
    for page, text in pages.items():
        page.write_text(text)


@contextlib.contextmanager
def cluster_of(running: Path | None) -> Iterator[Cluster]:
    """The one that runs, or a new one."""
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
    """Runs commands as they are shown, in a folder that looks like this repository's, and collects the page."""

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
        """Runs them one after the other."""
        self.consoles(*((command, self.run(command)) for command in commands), only=only)

    def consoles(self, *blocks: tuple[str, str], only: str = ".") -> None:
        self.text.append(console(*blocks, only=only) + "\n")

    def run(self, command: str, seconds: float = 300) -> str:
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
        """Runs it meanwhile, and then until it has said the last word. The file has what it says."""
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


def until(happened: Callable[[], bool], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {seconds} s: {what}")
        time.sleep(0.1)


def excerpt(said: str, only: str) -> list[str]:
    """Lines that are not too long. What is left out shows as `...`."""
    out: list[str] = []
    for line in said.rstrip().splitlines():
        if re.search(only, line):
            whole = line.rstrip()
            out.append(whole if len(whole) <= WIDTH else f"{whole[: WIDTH - 4].rstrip()} ...")
        elif out[-1:] != ["..."]:
            out.append("...")
    return out


def console(*blocks: tuple[str, str], only: str = ".") -> str:
    """Commands with what they have said. Of that, the lines that `only` matches."""
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
    tour.tell("One chart: CRDs, operator, rights.")
    helm = f"helm upgrade --install allranks charts/allranks --namespace {NAMESPACE} --create-namespace --wait"
    notes = f"helm get notes allranks --namespace {NAMESPACE}"
    tour.text.append(f"```zsh\n{helm}\n```\n")
    tour.consoles((notes, tour.run(notes)), only="installed as|It serves|^NOTES")
    tour.show(f"kubectl get pods --namespace {NAMESPACE}")


def trained(tour: Tour) -> None:
    tour.tell("## A job", "In a namespace that lets in only pods of the restricted Pod Security Standard:")
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
    tour.show(f"kubectl logs {JOB}-master-0-0", only="rank 0|epoch (1|2|3|10|20)/|saved")
    tour.tell(
        "The claim with the checkpoints is in the same file. It goes with the job here, for the next one to start anew:"
    )
    tour.show(f"kubectl delete -f {EXAMPLE}")


def named(tour: Tour) -> None:
    tour.tell("## Names", "The same job again, with other arguments, by allranks' own command:")
    tour.show(f"allranks submit {EXAMPLE} --set 'args=[--epochs=12, --pause=1]'")
    tour.team.attempt(JOB, 0)
    tour.tell("Every rank has a name in DNS, and every rank is told the name of the first:")
    resolve = f"kubectl exec {JOB}-worker-0-0 -- sh -c 'echo $MASTER_ADDR; getent hosts $MASTER_ADDR'"
    tour.show(resolve, f"kubectl get pod {JOB}-master-0-0 -o custom-columns=IP:.status.podIP")


def killed(tour: Tour) -> None:
    tour.tell(
        "## A rank is killed",
        "After four epochs, the training process of rank 1 (the child of its torchrun) gets SIGKILL:",
    )
    tour.team.says(f"{JOB}-master-0-0", "epoch 4/12")
    with tour.watched("kubectl get dt -w", "Succeeded") as file:
        kill = f"kubectl exec {JOB}-worker-0-0 -- sh -c 'kill -9 $(cat /proc/1/task/1/children)'"
        tour.show(kill)
        tour.team.attempt(JOB, 1)
        tour.team.says(f"{JOB}-master-0-1", "epoch 6/12")
        described = tour.run(f"allranks describe {JOB}")
        logged = tour.run(f"kubectl logs {JOB}-master-0-1")
        waited = tour.run(f"allranks wait {JOB}")
    tour.tell("All ranks were started again, once, and the cause has a name:")
    tour.consoles(("kubectl get dt -w", file.read_text()))
    tour.consoles((f"allranks describe {JOB}", described), only=NOTABLE)
    tour.tell("The new attempt went on from the checkpoint, to the end:")
    tour.consoles((f"kubectl logs {JOB}-master-0-1", logged), (f"allranks wait {JOB}", waited))


def too_big(tour: Tour) -> None:
    name = "too-big"
    tour.tell("## More GPUs than there are", "The job waits, and says why in the scheduler's own words:")
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
    """A node that the operator is not on."""
    operator = tour.cluster.kubectl("get", "pods", "-n", NAMESPACE, "-o", "jsonpath={.items[0].spec.nodeName}")
    [node] = {"node-1", "node-2"} - {operator}
    try:
        lose(tour, node)
    except BaseException:
        tour.cluster.script("start", node)
        raise


def lose(tour: Tour, node: str) -> None:
    told = "A longer job. The claim was kept, so it goes on from the checkpoint of the one before."
    tour.tell("## A node is lost", told)
    tour.show(f"allranks delete {JOB} --wait", f"allranks submit {EXAMPLE} --set 'args=[--epochs=24, --pause=1]'")
    begun = tour.team.says(f"{JOB}-master-0-0", "epoch 14/24")
    pods = "kubectl get pods -o wide"
    placed = tour.run(pods)
    lost = re.findall(rf"^(\S+) .* {node} ", placed, re.MULTILINE)
    if not lost:
        raise SystemExit(f"the scheduler put no rank on {node}")
    tour.consoles((f"kubectl logs {JOB}-master-0-0", begun), (pods, placed))
    tour.tell(
        f"The power of {node} goes, and nobody tells Kubernetes. It notices after some 40 s; 30 s later a rank's pod "
        "gives up a node that does not answer."
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
    told = "The loss of a node is a disruption: it counts against nothing."
    if status["restarts"]["counted"]:
        told += " Before that was known, a rank on the other node failed for want of its peers: that counts."
    tour.tell(f"{told} The new attempt went on from the last checkpoint.")
    tour.show(
        f"kubectl get dt {JOB} -o custom-columns=RESTARTS:.status.restarts",
        f"kubectl logs {JOB}-master-0-{status['attempt']} | grep resumed",
    )
    tour.tell("The node comes back, and what it still held is gone:")
    started = tour.cluster.script("start", node)
    commands = [f"kubectl wait --for=condition=Ready node/{node} --timeout=1m"]
    commands += [f"kubectl wait --for=delete pod/{lost[0]} --timeout=2m", "kubectl get pods"]
    tour.consoles(
        (f"tools/cluster.sh start {node}", started.stdout), *((command, tour.run(command)) for command in commands)
    )


def removed(tour: Tour) -> None:
    tour.tell("## What stays", "The operator goes; CRDs, jobs and their pods do not:")
    tour.show(
        f"helm uninstall allranks --namespace {NAMESPACE} --wait",
        f"kubectl wait --for=delete pods --all --namespace {NAMESPACE} --timeout=1m",
        f"kubectl get pods --namespace {NAMESPACE}",
        "kubectl get crds -o name | grep allranks",
        "kubectl get dt",
    )
    tour.tell("Kubernetes itself deletes what belongs to a job. Only the claim, which does not, is left.")
    tour.show(
        f"kubectl delete dt {JOB} --cascade=foreground",
        "kubectl get dt,pods,services,secrets,pvc",
    )


def readme_section(tour: Tour) -> str:
    """The manifest of the README, one pod of which is deleted while it runs."""
    job, victim = "penguins", "penguins-worker-1-0"
    found = re.search(r"^## A job\n+```yaml\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert found
    (tour.folder / "job.yaml").write_text(of_tests(found[1]))
    for command in new_team(README_TEAM):
        tour.run(command)
    apply, watch, delete = "kubectl apply -f job.yaml", "kubectl get dt -w", f"kubectl delete pod {victim}"
    wait = f"kubectl wait --for=condition=Complete dt/{job} --timeout=5m"
    events = f"kubectl get events --field-selector involvedObject.name={job} --sort-by=.metadata.resourceVersion"
    events += " -o custom-columns=REASON:.reason,MESSAGE:.message"
    team = Team(tour.cluster, README_TEAM)
    applied = tour.run(apply)
    with tour.watched(watch, "Succeeded") as file:
        team.attempt(job, 0)
        deleted = tour.run(delete)
        waited = tour.run(wait)
    return console(
        (apply, applied), (watch, file.read_text()), (delete, deleted), (wait, waited), (events, tour.run(events))
    )


PARTS = [installed, trained, named, killed, too_big, lost, removed]

if __name__ == "__main__":
    main()
