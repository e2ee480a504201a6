"""A user's cluster (kind, for example) for the tests: ALLRANKS_TEST_CLUSTER=yes and KUBECONFIG.

The tests create a service account, independent of how the kubeconfig logs in, and delete it at the end.
"""

from __future__ import annotations

import base64
import json
import subprocess
import tempfile
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

from .api import Api
from .controlplane import install

NAME = "allranks-tests"


class UsersCluster:
    """Like `ControlPlane`, but its components cannot be stopped."""

    def __init__(self, kubeconfig: str) -> None:
        self.kubeconfig = Path(kubeconfig)
        self._folder = tempfile.TemporaryDirectory(prefix="allranks-tests-")
        self.ca_file = Path(self._folder.name) / "ca.crt"
        self.url = self.admin_token = ""
        self.has_nodes = True

    def start(self, definitions: Iterable[Path] = ()) -> None:
        config = json.loads(self._ask("config", "view", "--minify", "--raw", "--output=json"))
        cluster = config["clusters"][0]["cluster"]
        self.url = cluster["server"]
        ca = cluster.get("certificate-authority-data")
        self.ca_file.write_bytes(base64.b64decode(ca) if ca else Path(cluster["certificate-authority"]).read_bytes())
        account = {"kind": "ServiceAccount", "name": NAME, "namespace": NAME}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
        objects = [
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAME}},
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": NAME, "namespace": NAME}},
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRoleBinding",
                "metadata": {"name": NAME},
                "roleRef": role,
                "subjects": [account],
            },
        ]
        self._ask("apply", "--filename=-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
        self.admin_token = self._ask("create", "token", NAME, f"--namespace={NAME}", "--duration=12h").strip()
        install(self.api, definitions)
        self.has_nodes = bool(self.api.list("Node"))

    def stop(self) -> None:
        """The CustomResourceDefinitions stay: the user's jobs may need them."""
        self.kubectl("delete", "clusterrolebinding", NAME, "--ignore-not-found")
        self.kubectl("delete", "namespace", NAME, "--ignore-not-found", "--wait=false")
        self.api.close()
        self._folder.cleanup()

    @cached_property
    def api(self) -> Api:
        return Api(self.url, self.ca_file, self.admin_token)

    def kubectl(self, *arguments: str, input: str | None = None) -> subprocess.CompletedProcess[str]:
        """The user's own kubectl."""
        command = ["kubectl", f"--kubeconfig={self.kubeconfig}", *arguments]
        return subprocess.run(command, input=input, capture_output=True, text=True, timeout=300, check=False)

    def _ask(self, *arguments: str, input: str | None = None) -> str:
        done = self.kubectl(*arguments, input=input)
        if done.returncode:
            raise RuntimeError(f"kubectl {' '.join(arguments)}: {done.stderr}")
        return done.stdout
