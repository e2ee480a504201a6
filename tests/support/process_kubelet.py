"""A kubelet for tests that runs the programs of pods as real processes of this machine, as `allranks run` does.

Binding, statuses, deletions, tokens (TokenRequest), ConfigMap volumes and logs go through a real API server. What a
container would isolate is missing: there are no images, and each path of a volume in a command is replaced by its
directory. The names of a job's pods are replaced by the loopback address, as no DNS serves them.

    with process_kubelet(control_plane, namespace, folder) as kubelet: ...
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import re
import resource
import threading
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from allranks.core.facts.model import Pod
from allranks.core.facts.naming import FETCH, JOB_LABEL, ROLE_LABEL, UPLOAD
from allranks.data.pod import RESULT
from allranks.kube.auth import Connection
from allranks.local.environment import machine_environment
from allranks.local.pod import Backoff, LocalPod
from allranks.local.prepare import Machine, prepare
from allranks.local.volumes import Volumes
from support.simulator import pod_status
from support.simulator.kubelets import Program

from . import live
from .api import Api, ApiError, Manifest, path
from .controlplane import ControlPlane, free_ports
from .kubelet import Kubelet, _is_bound, _path, binding
from .kubelet_logs import LogKubelet

RENDEZVOUS = {"MASTER_PORT", "PET_MASTER_PORT"}
"""Variables with a port on which a pod listens, which must be free on this machine."""


class ProcessKubelet(Kubelet):
    """Runs the pods of one namespace."""

    def __init__(
        self,
        connection: Connection,
        api: Api,
        namespace: str,
        folder: Path,
        environ: Mapping[str, str],
        binds: bool = True,
        workdir: Path | None = None,
    ) -> None:
        """`workdir`: where the programs start, as that of an image. Without it, each pod has a folder of its own."""
        super().__init__(connection, lambda _: Program(), namespace=namespace, binds=binds)
        self.workdir = workdir
        self.logs = LogKubelet(api, folder)
        self._folder, self._environ = folder, environ
        self._ports: dict[str, str] = {}
        self._processes: dict[str, _Runner] = {}
        self.claims: dict[str, Path] = {}
        """Claim -> its directory, which all pods share."""

    async def _live(self, pod: Manifest) -> None:
        with contextlib.suppress(ApiError):  # deleted in the meantime, which the watch reports
            if not _is_bound(pod):
                await self._request("POST", _path(pod, "binding"), binding(pod, self.logs.node))
            pod = await self._report(pod, pod_status.scheduled(pod, self._now()))
            runner = self._processes[pod["metadata"]["uid"]] = _Runner(self, pod)
            try:
                await runner.run()
            except Exception as error:
                await self._report(pod, pod_status.init_failed(pod, self._now(), 1, f"{type(error).__name__}: {error}"))
                raise

    async def _die(self, pod: Manifest) -> None:
        uid = pod["metadata"]["uid"]
        with contextlib.suppress(ApiError):
            if runner := self._processes.pop(uid, None):
                await runner.stop()
                if not runner.reported:
                    code = runner.pod.status.exit.code if runner.pod.status.exit else 143
                    await self._report(pod, pod_status.exited(pod, self._now(), code))
            options = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
            await self._request("DELETE", _path(pod), options)
        self._deaths.pop(uid, None)

    def runs(self, pod: str) -> bool:
        """Whether the program of the pod was started."""
        found = (one for one in self._processes.values() if one._manifest["metadata"]["name"] == pod)
        return any(hasattr(one, "pod") and one.pod.status.started_at is not None for one in found)

    async def close(self) -> None:
        for runner in list(self._processes.values()):
            await runner.stop()

    async def program(self, pod: Manifest) -> Manifest:
        """The manifest as this machine can run it: addresses of the loopback, and volumes that are directories."""
        metadata, spec = pod["metadata"], pod["spec"]
        job = metadata["labels"][JOB_LABEL]
        names = re.compile(rf"[a-z0-9.-]+\.{re.escape(job)}\.{re.escape(metadata['namespace'])}\.svc")
        text = names.sub("127.0.0.1", json.dumps(spec))
        spec = json.loads(text)
        attempt = f"{job}-{metadata['labels'].get('allranks.dev/attempt')}"
        for container in spec["containers"]:
            from_secrets = await self._from_secrets(container, metadata["namespace"])
            container["env"] = [*from_secrets, *(container.get("env") or ())]
            if metadata["labels"].get(ROLE_LABEL) in (FETCH, UPLOAD):
                container["env"].append({"name": RESULT, "value": str(self.termination_log(pod))})
            for variable in container.get("env") or ():
                if variable["name"] in RENDEZVOUS:
                    variable["value"] = self._ports.setdefault(attempt, str(free_ports(1)[0]))
        volumes = [
            {"name": volume["name"], "emptyDir": {}} if {"configMap", "projected", "secret"} & volume.keys() else volume
            for volume in spec.get("volumes") or ()
        ]
        return {**pod, "spec": {**spec, "volumes": volumes}}

    async def _from_secrets(self, container: Manifest, namespace: str) -> list[Manifest]:
        """The variables of `envFrom`. Those of `env` follow, and replace them."""
        found: dict[str, str] = {}
        for source in container.pop("envFrom", None) or ():
            secret = await self._request("GET", path("Secret", namespace, source["secretRef"]["name"]))
            found |= {key: base64.b64decode(value).decode() for key, value in secret["data"].items()}
        return [{"name": key, "value": value} for key, value in found.items()]

    def termination_log(self, pod: Manifest) -> Path:
        return self._folder / pod["metadata"]["name"] / "termination-log"

    async def variables(self, pod: Manifest) -> dict[str, dict[str, str]]:
        """ConfigMap -> its values, of those that variables refer to."""
        containers = [*pod["spec"]["containers"], *(pod["spec"].get("initContainers") or ())]
        sources = [variable.get("valueFrom") or {} for one in containers for variable in one.get("env") or ()]
        names = {source["configMapKeyRef"]["name"] for source in sources if "configMapKeyRef" in source}
        where = pod["metadata"]["namespace"]
        return {name: (await self._request("GET", path("ConfigMap", where, name))).get("data") or {} for name in names}

    async def files(self, pod: Manifest) -> dict[str, dict[str, bytes]]:
        """Volume -> the files that a kubelet puts into it."""
        namespace = pod["metadata"]["namespace"]
        found: dict[str, dict[str, bytes]] = {}
        for volume in pod["spec"].get("volumes") or ():
            if source := volume.get("configMap"):
                config_map = await self._request("GET", path("ConfigMap", namespace, source["name"]))
                binary = {key: base64.b64decode(value) for key, value in (config_map.get("binaryData") or {}).items()}
                found[volume["name"]] = binary | {
                    key: value.encode() for key, value in (config_map.get("data") or {}).items()
                }
            if source := volume.get("secret"):
                secret = await self._request("GET", path("Secret", namespace, source["secretName"]))
                found[volume["name"]] = {key: base64.b64decode(value) for key, value in secret["data"].items()}
            for source in (volume.get("projected") or {}).get("sources") or ():
                if token := source.get("serviceAccountToken"):
                    found.setdefault(volume["name"], {})[token["path"]] = (await self._token(pod, token)).encode()
        return found

    async def _token(self, pod: Manifest, wanted: Manifest) -> str:
        metadata = pod["metadata"]
        bound = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}
        spec = {"audiences": [wanted["audience"]], "expirationSeconds": 3600, "boundObjectRef": bound}
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        where = path("ServiceAccount", metadata["namespace"], pod["spec"].get("serviceAccountName", "default"), "token")
        token: str = (await self._request("POST", where, request))["status"]["token"]
        return token


class _Runner:
    """The processes of one pod. Also its `PodHost`."""

    def __init__(self, kubelet: ProcessKubelet, pod: Manifest) -> None:
        self.files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self.backoff, self.node = Backoff(), kubelet.logs.node
        self.start_lock = asyncio.Lock()
        self.reported = False
        """Whether the API server has the end of the pod."""
        self.pod: LocalPod
        self._kubelet, self._manifest = kubelet, pod
        self._folder = kubelet._folder / pod["metadata"]["name"]
        self._changed = asyncio.Event()
        self._rest = b""
        self._stopped = False

    async def run(self) -> None:
        kubelet, name = self._kubelet, self._manifest["metadata"]["name"]
        volumes = Volumes(self._folder, {}, kubelet.claims)
        volumes.config_maps |= await kubelet.variables(self._manifest)
        machine = Machine(machine_environment(kubelet._environ), volumes, kubelet.workdir or self._folder)
        plan, problems = prepare(await kubelet.program(self._manifest), machine)
        assert plan is not None, problems
        self._folder.mkdir(parents=True, exist_ok=True)
        for volume, _ in plan.directories:
            volumes.make(name, volume)
        volumes.make_folders(plan.folders)
        for volume_name, content in (await kubelet.files(self._manifest)).items():
            directory = volumes.own_directory(name) / volume_name
            for file, data in content.items():
                (directory / file).write_bytes(data)
        if self._stopped:
            return
        self.pod = LocalPod(plan, self._folder / "logs", None, self)
        (self._folder / "logs").mkdir(exist_ok=True)
        self.pod.start()
        await self._follow()

    async def _follow(self) -> None:
        """Reports each state of the pod once."""
        pod, running = self._manifest, False
        while not self.reported:
            self._changed.clear()
            status, now = self.pod.status, datetime.now(UTC)
            if status.started_at and not running:
                running = True
                pod = await self._kubelet._report(pod, pod_status.running(pod, now))
            if status.phase in ("Succeeded", "Failed"):
                ended = status.exit
                code, message = (ended.code, ended.message) if ended else (1, "")
                with contextlib.suppress(FileNotFoundError):
                    message = self._kubelet.termination_log(pod).read_text(encoding="utf-8")
                how = pod_status.exited if running else pod_status.init_failed
                ending = (
                    how(pod, now, code, ended.reason if ended else "", message)
                    if running
                    else how(pod, now, code, message)
                )
                await self._kubelet._report(pod, ending)
                self._kubelet.logs.end(pod["metadata"]["namespace"], pod["metadata"]["name"])
                self.reported = True
                return
            await self._changed.wait()

    async def stop(self) -> None:
        self._stopped = True
        if hasattr(self, "pod"):
            self.pod.delete()
            await self.pod.gone.wait()
            self._kubelet.logs.end(self._manifest["metadata"]["namespace"], self._manifest["metadata"]["name"])

    # Implements `PodHost`.

    def changed(self) -> None:
        self._changed.set()

    def output(self, pod: Pod, container: str, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n") if data else [self._rest, b""]
        metadata = self._manifest["metadata"]
        texts = [line.decode(errors="replace") for line in lines if line or data]
        self._kubelet.logs.write(metadata["namespace"], metadata["name"], *texts, container=container)

    def fail(self, error: Exception) -> None:
        raise error

    def shim_killed(self) -> None: ...

    async def acquire_gpus(self, pod: str, count: int) -> Mapping[str, str]:
        return {}

    def release_gpus(self, pod: str) -> None: ...


@contextlib.contextmanager
def process_kubelet(
    control_plane: ControlPlane,
    namespace: str,
    folder: Path,
    environ: Mapping[str, str] | None = None,
    binds: bool = True,
    workdir: Path | None = None,
) -> Iterator[ProcessKubelet]:
    """Runs it in a thread. At the end no process is left."""
    kubelet = ProcessKubelet(
        live.connection(control_plane), control_plane.api, namespace, folder, environ or os.environ, binds, workdir
    )
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="process kubelet", daemon=True)
    thread.start()
    stop = asyncio.Event()

    async def run() -> None:
        try:
            await kubelet.run(stop)
        finally:
            await kubelet.close()
            await asyncio.sleep(0.1)  # connections need a moment to close

    work = asyncio.run_coroutine_threadsafe(run(), loop)
    try:
        yield kubelet
    finally:
        loop.call_soon_threadsafe(stop.set)
        try:
            work.result(600)
        finally:
            kubelet.logs.stop()
            loop.call_soon_threadsafe(loop.stop)
            thread.join(600)
            loop.close()
