"""Settings of the operator, from the environment (`ALLRANKS_...`) or from flags, which take precedence.

`docs/reference/settings.md` is generated from this file.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from allranks.api.pool import DataPods
from allranks.core.facts import policy
from allranks.core.facts.data_store import DataStore
from allranks.core.facts.quantity import quantity, quantity_problems
from allranks.core.objects.scheduling import NODE_LOST_SECONDS
from allranks.version import OPERATOR_IMAGE

ENV_PREFIX = "ALLRANKS_"


def _data_pods(text: str) -> DataPods:
    """Raises ValidationError."""
    return DataPods.model_validate_json(text, by_alias=True, by_name=False) if text else DataPods()


class Settings(BaseSettings):
    """Settings of `allranks operator`."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True, extra="ignore")

    namespaces: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Serve only these namespaces (comma-separated); a Role in each is sufficient. Empty: all of them.",
    )
    pools: bool = Field(
        True,
        description="Serve TrainingPools. They are cluster-scoped, so the operator needs a ClusterRole to read them. "
        "When disabled, a job that names a pool waits with reason PoolsNotServed.",
    )
    sweeps: bool = Field(
        True,
        description="Serve TrainingSweeps, for which the operator creates and suspends jobs. Needs rights to do so.",
    )
    queues: bool = Field(
        False,
        description="Serve Kueue's queues: a job with `scheduling.queue` or the label kueue.x-k8s.io/queue-name waits "
        "until Kueue admits it. Needs rights for Kueue's objects, and a ClusterRole that reads ResourceFlavors and "
        "priority classes. When disabled, such a job waits with reason QueuesNotServed.",
    )
    gangs: bool = Field(
        False,
        description="Use gang schedulers (`scheduling.gang`): the PodGroups of Kubernetes, Volcano or Coscheduling, "
        "whichever the cluster serves. Needs rights for their PodGroups. When disabled, a job that names one waits "
        "with reason GangBackendNotServed.",
    )
    coscheduling_scheduler: str = Field(
        "scheduler-plugins-scheduler",
        description="Name of the scheduler with the plugin Coscheduling, for `scheduling.gang: Coscheduling`.",
    )
    helper_image: str = Field(
        OPERATOR_IMAGE,
        description="Image of the init container that copies helpers into pods: the operator's own image.",
    )
    helper_pull_secrets: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Secrets for pulling the helper image (comma-separated), added to the imagePullSecrets of pods "
        "with a helper. They must exist in the namespaces of the jobs.",
    )
    data_claim: str = Field(
        "",
        description="Name of a PersistentVolumeClaim that each namespace of jobs has, for inputs that are fetched and "
        "for outputs. Its access mode is ReadWriteMany, unless all pods of a job run on one node. Empty: jobs with "
        "outputs fail with reason InvalidSpec, and pods fetch their inputs themselves, which needs `data_image`.",
    )
    data_image: str = Field(
        "",
        description="Image of the pods that fetch inputs and upload outputs: allranks with its extra `data`, and git. "
        "`helper_pull_secrets` are used for it as well. Empty: the helper image, which fetches https:// only.",
    )
    data_host_path: str = Field(
        "",
        description="Directory on each node into which pods fetch the inputs of their job, instead of into the claim. "
        "Namespaces must admit pods with hostPath volumes. `spec.inputCache` of a TrainingPool replaces it. Empty: "
        "without a claim, each pod fetches into an emptyDir.",
    )
    data_cache_size: str = Field(
        "100Gi",
        description="Size of the inputs that the claim, or the directory of a namespace on a node, holds before those "
        "that were used longest ago are evicted. Also the size limit of the emptyDir of a pod.",
    )
    data_pods: str = Field(
        "",
        description="JSON with `resources`, `nodeSelector` and `tolerations` of the pods that fetch inputs into the "
        "claim, check destinations and upload outputs. `spec.data` of a TrainingPool replaces each of them. Empty: "
        'requests {"cpu": "500m", "memory": "256Mi"}, limits {"cpu": "2", "memory": "2Gi"}, any node.',
    )
    namespace_policies: bool = Field(
        False,
        description="Read the Namespace of each job: its labels for the namespaceSelector of TrainingPools, and its "
        "annotations policy.allranks.dev/NAME, which replace the defaults and limits below. Needs `get` of namespaces.",
    )
    default_ttl_seconds_after_finished: Annotated[int, Field(ge=0, le=315_360_000)] | None = Field(
        None, description="ttlSecondsAfterFinished of jobs that do not set it. Empty: finished jobs are kept."
    )
    default_active_deadline_seconds: Annotated[int, Field(ge=1, le=315_360_000)] | None = Field(
        None, description="activeDeadlineSeconds of jobs that do not set it. Empty: no deadline."
    )
    default_pool: str = Field("", description="TrainingPool of jobs that do not name one. Empty: none.")
    default_run_as_user: Annotated[int, Field(ge=1, le=2_147_483_647)] | None = Field(
        None,
        description="securityContext.runAsUser of pods whose job and pool do not set it, for images that would run as "
        "root. Empty: the user of the image.",
    )
    default_pod_security: Literal["Auto", "Restricted", "Baseline", "Image"] = Field(
        "Auto",
        description="Security context of pods whose job sets no podSecurity. Auto: restricted if the namespace of the "
        "job enforces it, or if the operator does not read it, else the user of the image without added privileges.",
    )
    max_pod_security: Literal["Restricted", "Baseline", "Image"] = Field(
        "Image",
        description="The least restricted podSecurity of a job. Restricted: the pods of all jobs are restricted.",
    )
    max_active_deadline_seconds: Annotated[int, Field(ge=1, le=315_360_000)] | None = Field(
        None, description="Largest activeDeadlineSeconds of a job, and the default if there is none. Empty: no limit."
    )
    max_pods: Annotated[int, Field(ge=0, le=10_000)] | None = Field(
        None,
        description="Largest number of pods of a job, including the maxReplicas of an elastic job. Empty: no limit.",
    )
    allowed_pools: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="TrainingPools that jobs may use (comma-separated). Empty: all of them."
    )
    image_prefixes: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Registries, folders or repositories from which all images that a job names may come "
        "(comma-separated), for example ghcr.io/team/. Empty: any image.",
    )
    reserved_accounts: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="ServiceAccounts that no job may use (comma-separated, NAMESPACE/NAME): the accounts of the "
        "operator, the archiver and the UI.",
    )
    node_conditions: Annotated[tuple[str, ...], NoDecode] = Field(
        (
            *("Gpu*Watch", "SysLogsXIDError", "SysLogsSXIDError", "SysLogsGPUFallenOff"),
            *("NVSwitchFatalError", "NVSwitchDown"),
            *("KernelDeadlock", "ReadonlyFilesystem", "XfsShutdown"),
        ),
        description="Types of node conditions (comma-separated, with * as a wildcard) by which monitors say that a "
        "node is unhealthy: TYPE for the status True, or TYPE=False. A job that fails or hangs with a pod on such a "
        "node restarts without counting, on other nodes. Default: those of NVSentinel and node-problem-detector. Needs "
        "`list` and `watch` of nodes. If this and `node_taints` are empty, nodes are not watched.",
    )
    node_taints: Annotated[tuple[str, ...], NoDecode] = Field(
        ("nvidia.com/*-error",),
        description="Keys of taints (comma-separated, with * as a wildcard) with the same meaning. By default what "
        "NVSentinel recommends.",
    )
    node_lost_seconds: Annotated[int, Field(ge=0, le=86_400)] = Field(
        NODE_LOST_SECONDS,
        description="tolerationSeconds of pods for unreachable and not-ready nodes. A failed node is marked after "
        "about 50 s; this many seconds later its pods are evicted and the job restarts. Tolerations in a job's "
        "template take precedence.",
    )
    leader_election: bool = Field(
        False, description="Use leader election with a Lease; required with more than one replica."
    )
    lease_name: str = Field("allranks-operator", description="Name of the Lease.")
    lease_namespace: str = Field("", description="Namespace of the Lease. Empty: the operator's own.")
    lease_seconds: Annotated[int, Field(ge=3, le=600)] = Field(
        10,
        description="Seconds after the leader's last renewal of the Lease until another replica can take over.",
    )
    address: str = Field(
        "", description="Address of /metrics, /healthz and /readyz. Empty: all addresses, IPv4 and IPv6."
    )
    port: Annotated[int, Field(ge=0, le=65535)] = Field(
        8080, description="Port of /metrics, /healthz and /readyz; 0 selects a free port."
    )
    probe_port: Annotated[int, Field(ge=0, le=65535)] | None = Field(
        None,
        description="Additional port of /healthz and /readyz for the kubelet, so that clients of `--port` cannot delay "
        "probes; 0 selects a free port.",
    )
    metrics_auth: bool = Field(
        False,
        description="Require a token for /metrics, of an account that may `get` the non-resource URL /metrics. Needs "
        "`create` of tokenreviews and subjectaccessreviews.",
    )
    report_url: str = Field(
        "",
        description="URL to which pods report their progress: the URL of a Service for `--report-port`, "
        "`http://HOST:PORT/v1/report`. Empty: reports are disabled.",
    )
    report_port: Annotated[int, Field(ge=0, le=65535)] = Field(
        8081, description="Port that receives reports; 0 selects a free port."
    )
    socket: str = Field(
        "",
        description="Path of a Unix socket for `allranks operator-frontend`, which then serves the ports above in a "
        "process without rights. The operator itself opens no port. Empty: the operator serves the ports.",
    )
    check_socket: str = Field(
        "",
        description="Path of a Unix socket for the liveness check in the operator's own container "
        "(`python3 -m allranks.operator.health_check PATH`). Only this container may reach it.",
    )
    network_policies: bool = Field(
        False,
        description="Create a NetworkPolicy for each job: only the job's own pods reach its pods, except on ports that "
        "the containers of the job's template declare.",
    )
    disruption_budgets: bool = Field(
        False,
        description="Create a PodDisruptionBudget for each job, which blocks the eviction of its pods: a drain waits "
        "until the job has finished. Needs `create` and `get` of poddisruptionbudgets.",
    )
    receivers: str = Field(
        "",
        description="Path of a file with the receivers of notifications, which the chart mounts from a Secret. It is "
        "read again when it changes. Empty: no notifications.",
    )
    concurrency: Annotated[int, Field(ge=1, le=1024)] = Field(
        32, description="Maximum number of concurrent requests to the API server."
    )
    request_timeout: Annotated[float, Field(gt=0, le=3600)] = Field(
        30.0, description="Seconds after which a request without a response is retried."
    )
    watch_timeout: Annotated[int, Field(ge=5, le=86_400)] = Field(
        240,
        description="Seconds after which a watch is renewed. A watch silent for longer fails the liveness probe.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Log level.")
    log_format: Literal["json", "text"] = Field("json", description="json: one object per line; text: human-readable.")

    @property
    def data(self) -> DataStore | None:
        """Return where inputs and outputs are kept; None if jobs with them are refused. Streams need no claim."""
        if not (self.data_claim or self.data_image or self.data_host_path):
            return None
        image, size = self.data_image or self.helper_image, int(quantity(self.data_cache_size))
        return DataStore(self.data_claim, image, size, self.data_host_path, _data_pods(self.data_pods))

    @field_validator("data_pods")
    @classmethod
    def _is_data_pods(cls, value: str) -> str:
        if problems := quantity_problems(_data_pods(value).resources):
            raise ValueError("; ".join(f"resources.{path}: {text}" for path, text in problems))
        return value

    def reserved_accounts_of(self, namespace: str) -> tuple[str, ...]:
        """Return the names of the reserved ServiceAccounts in a namespace."""
        pairs = (account.partition("/") for account in self.reserved_accounts)
        return tuple(name for place, _, name in pairs if place == namespace)

    @field_validator("data_host_path")
    @classmethod
    def _is_directory(cls, value: str) -> str:
        parts = value.split("/")
        if value and (not value.startswith("/") or not value.strip("/") or {".", ".."} & {*parts} or ":" in value):
            raise ValueError("must be a directory below /, without ':' and without . or .. as a part")
        return value

    @field_validator("data_cache_size")
    @classmethod
    def _is_size(cls, value: str) -> str:
        if quantity(value) < 0:
            raise ValueError("must not be negative")
        return value

    @field_validator("reserved_accounts")
    @classmethod
    def _are_accounts(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for account in value:
            if len([part for part in account.split("/") if part]) != 2:
                raise ValueError(f"must be NAMESPACE/NAME, not {account!r}")
        return value

    @property
    def policy(self) -> policy.Policy:
        """Return the operator-wide defaults and limits."""
        return policy.Policy(
            default_ttl_seconds_after_finished=self.default_ttl_seconds_after_finished,
            default_active_deadline_seconds=self.default_active_deadline_seconds,
            default_pool=self.default_pool or None,
            default_run_as_user=self.default_run_as_user,
            default_pod_security=self.default_pod_security,
            max_pod_security=self.max_pod_security,
            max_active_deadline_seconds=self.max_active_deadline_seconds,
            max_pods=self.max_pods,
            allowed_pools=self.allowed_pools or None,
            image_prefixes=self.image_prefixes or None,
        )

    @field_validator(
        "namespaces",
        "helper_pull_secrets",
        "allowed_pools",
        "image_prefixes",
        "reserved_accounts",
        "node_conditions",
        "node_taints",
        mode="before",
    )
    @classmethod
    def _split(cls, value: Any) -> Any:
        return policy.names(value) if isinstance(value, str) else value

    @field_validator(
        "default_ttl_seconds_after_finished",
        "default_active_deadline_seconds",
        "default_run_as_user",
        "max_active_deadline_seconds",
        "max_pods",
        mode="before",
    )
    @classmethod
    def _empty_is_none(cls, value: Any) -> Any:
        return None if value == "" else value
