"""The README's section on a cluster: a real API server and the operator; a fake kubelet plays the pods."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.cluster.controlplane import ControlPlane

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

JOB = """\
apiVersion: allranks.dev/v1alpha1
kind: DistributedTraining
metadata: {name: penguins}
spec:
  framework: pytorch
  image: ghcr.io/allranks/pytorch:latest
  command: [torchrun, train/penguins_pytorch.py, --epochs=20]
  roles:
    master: {replicas: 1}
    worker: {replicas: 3}
"""


def section() -> str:
    """What the commands of the section print."""
    from tests.cluster.controlplane import ControlPlane

    programs = subprocess.run([ROOT / "tools" / "controlplane.sh"], stdout=subprocess.PIPE, text=True, check=True)
    with tempfile.TemporaryDirectory() as folder:
        cluster = ControlPlane(Path(programs.stdout.strip()), Path(folder))
        cluster.start(sorted((ROOT / "crds").glob("*.yaml")))
        try:
            return _shown(cluster, Path(folder))
        finally:
            cluster.stop()


def _shown(cluster: ControlPlane, folder: Path) -> str:
    (folder / "job.yaml").write_text(JOB)
    config = f"--kubeconfig={cluster.kubeconfig}"
    kubectl = [str(cluster.programs / "kubectl"), config]
    operator = [sys.executable, "-m", "allranks", "operator", config, "--port=0", "--log-level=error"]
    kubelet = [sys.executable, "-m", "tests.cluster.kubelet", config, "--run-seconds=6"]
    started = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) for command in (operator, kubelet)]
    try:
        time.sleep(3)  # both have listed what there is
        applied = subprocess.run([*kubectl, "apply", "-f", "job.yaml"], cwd=folder, capture_output=True, text=True)
        with (folder / "watch").open("w") as out:
            watch = subprocess.Popen([*kubectl, "get", "dt", "-w"], stdout=out)
            started.append(watch)
            time.sleep(4)
            subprocess.run([*kubectl, "delete", "pod", "penguins-worker-1-0", "--wait=false"], capture_output=True)
            done = [*kubectl, "wait", "--for=condition=Complete", "dt/penguins", "--timeout=60s"]
            waited = subprocess.run(done, capture_output=True, text=True)
            time.sleep(1.5)
        told = [*kubectl, "get", "events", "--sort-by=.metadata.resourceVersion", "--field-selector"]
        told += ["involvedObject.kind=DistributedTraining", "-o"]
        told += ["custom-columns=TYPE:.type,REASON:.reason,MESSAGE:.message"]
        events = subprocess.run(told, capture_output=True, text=True).stdout
    finally:
        for process in started:
            process.terminate()
            process.wait(15)
    lines = ["$ kubectl apply -f job.yaml", applied.stdout.strip(), "$ kubectl get dt -w"]
    lines += (folder / "watch").read_text().splitlines()
    lines += ["$ kubectl wait --for=condition=Complete dt/penguins", waited.stdout.strip()]
    lines += ["$ kubectl get events", *events.rstrip().splitlines()]
    return "```console\n" + "\n".join(line.rstrip() for line in lines) + "\n```"


if __name__ == "__main__":
    print(section())
