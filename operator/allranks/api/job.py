"""The types of `DistributedTraining`: its fields, their bounds and defaults.

The CRD is generated from these (`make generate`); field descriptions are what `kubectl explain` prints.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StringConstraints, create_model

from allranks.api import cel_rules as cel
from allranks.api.cost import Utilization
from allranks.api.data import ADDRESS, RESUME_INPUT, Code, Input, Inputs, Outputs, Packages, StartingPoint
from allranks.api.notify import Notifications
from allranks.api.scheduling import Scheduling
from allranks.fields import (
    Count,
    LongText,
    Model,
    Name,
    Opaque,
    Path,
    Quantity,
    Reason,
    Replicas,
    Seconds,
    Text,
    rules,
)
from allranks.frameworks import FRAMEWORKS

GROUP = "allranks.dev"
VERSION = "v1alpha1"
KIND = "DistributedTraining"
PLURAL = "distributedtrainings"
API_VERSION = f"{GROUP}/{VERSION}"
MANAGED_BY = "allranks.dev/operator"
"""The value of `managedBy` that means this operator, as does an absent value."""


class EnvVar(Model):
    """An environment variable, as in a pod."""

    name: Name = Field(description="Name of the variable, for example NCCL_DEBUG.")
    value: LongText | None = Field(None, description="Value of the variable. Set either value or valueFrom.")
    value_from: Opaque | None = Field(None, description="Source of the value, as in a pod (secretKeyRef, ...).")


class Resources(Model):
    """Compute resources, as in a pod."""

    limits: Annotated[dict[Name, Quantity], Field(max_length=64)] | None = Field(
        None, description="Limits, for example {nvidia.com/gpu: 8, memory: 64Gi}."
    )
    requests: Annotated[dict[Name, Quantity], Field(max_length=64)] | None = Field(
        None, description="Amounts that are reserved. Default: limits."
    )


Arguments = Annotated[list[LongText], Field(max_length=256)]
Environment = Annotated[list[EnvVar], Field(max_length=256)]


class Container(Model):
    """The training container. A role's value overrides the job's."""

    model_config = {"json_schema_extra": rules(*cel.ENVIRONMENT)}

    image: Text | None = Field(None, description="Image of the training container.")
    command: Arguments | None = Field(
        None,
        description="The program, for example [torchrun, train.py]. Default: the image's entrypoint.",
    )
    args: Arguments | None = Field(None, description="Arguments after the command.")
    env: Environment | None = Field(None, description="Environment variables of the program, merged by name.")
    resources: Resources | None = Field(None, description="Compute resources of each pod's training container.")
    working_dir: Path | None = Field(None, description="Working directory, an absolute path.")
    template: Opaque | None = Field(
        None,
        description="A PodTemplateSpec that the other fields are merged into, by strategic merge. The training "
        "container is named trainer.",
    )


class RoleSpec(Container):
    """The pods of one role."""

    model_config = {"json_schema_extra": rules(*cel.ENVIRONMENT, *cel.ROLE)}

    replicas: Replicas = Field(1, description="Number of pods of this role.")
    pool: Name | None = Field(
        None, description="Name of the TrainingPool that describes the nodes of this role. Default: the job's pool."
    )


class RestartRule(Model):
    """A rule for failures. The first one that matches applies. Set exactly one of exitCodes, signals and reasons."""

    model_config = {"json_schema_extra": rules(*cel.RESTART_RULE)}

    exit_codes: Annotated[list[Annotated[int, Field(ge=0, le=255)]], Field(min_length=1, max_length=255)] | None = (
        Field(None, description="Exit codes of the rank that failed first.")
    )
    signals: Annotated[list[Annotated[int, Field(ge=1, le=64)]], Field(min_length=1, max_length=64)] | None = Field(
        None,
        description="Signals that ended the rank that failed first, as numbers, for example 9. Exit code 128 + n "
        "matches as well, because container runtimes report a signal in this way.",
    )
    reasons: Annotated[list[Reason], Field(min_length=1, max_length=32)] | None = Field(
        None, description="Reasons of the failure, for example OOMKilled, Evicted, NodeLost, Deleted."
    )
    action: Literal["Restart", "RestartUncounted", "Fail", "Ignore"] = Field(
        description="Restart counts against maxRestarts, RestartUncounted does not, Fail ends the job, Ignore "
        "continues without the pod."
    )


class RestartWindow(Model):
    """A number of restarts within a time, for jobs that run for weeks."""

    seconds: Annotated[int, Field(ge=1, le=31_536_000)] = Field(
        description="Length of the window, which ends with the failure."
    )
    max_restarts: Annotated[int, Field(ge=0, le=30)] = Field(
        description="Number of counted restarts within the window; the next failure of the program fails the job."
    )


class Restart(Model):
    """What happens when a rank fails."""

    model_config = {"json_schema_extra": rules(*cel.RESTART)}

    max_restarts: Annotated[int, Field(ge=0, le=9_999)] = Field(
        3, description="Number of restarts after failures of the program. Disruptions do not count."
    )
    window: RestartWindow | None = Field(
        None, description="A second limit, for counted restarts within a time. maxRestarts applies as well."
    )
    backoff_seconds: Seconds = Field(
        10,
        description="Delay before the second counted restart; it doubles up to 300 s. The first restart is immediate.",
    )
    scope: Literal["Group", "Pod"] | None = Field(
        None,
        description="What a failure restarts: Group, all ranks together, or Pod, the failed pod alone. Default: by "
        "framework: Pod for parameter servers, evaluators, workers of a TensorFlow chief with parameter servers, "
        "elastic Horovod workers, Ray workers, and SPMD roles without ranks; Group for all others.",
    )
    rules: Annotated[list[RestartRule], Field(max_length=32)] | None = Field(
        None, description="Rules that are evaluated in order before the default ones."
    )
    grace_seconds: Seconds | None = Field(
        None,
        description="Time between SIGTERM and SIGKILL for the pods that a failure ends, if it is less than their "
        "terminationGracePeriodSeconds: ranks that have lost a peer wait in a collective operation and can save "
        "nothing, and the next attempt waits for their GPUs. It does not apply to pods that are deleted for another "
        "reason, such as a suspension, a preemption, or an eviction of one of them. Default: 30.",
    )
    in_place: Literal["Auto", "Never"] | None = Field(
        None,
        description="Whether the ranks restart in their pods after a failure of a process: Auto, if all pods and their "
        "nodes are fine and the helper of allranks runs the program, or Never, always with new pods. Auto adds no init "
        "container: the helper runs the commands of jobs with progress or hang, and of frameworks that need it. "
        "Default: Auto.",
    )
    warm_start: Literal["Auto", "Never"] | None = Field(
        None,
        description="Whether ranks that restart in their pods find their imports done: Auto, if the helper of allranks "
        "can start the next attempt's program in advance, in a process that imports what the first attempt has "
        "imported, and if the memory of the container has room for it; or Never. Default: Auto.",
    )
    hold_seconds: Seconds | None = Field(
        None,
        description="Keep the pods of a failed job this long for a look, whatever cleanPodPolicy says. They keep their "
        "GPUs. Deletion of the job and suspend: true end it. Local runs ignore it. Default: 0.",
    )


class Elastic(Model):
    """Bounds for the number of workers of an elastic job."""

    model_config = {"json_schema_extra": rules(*cel.ELASTIC)}

    min_replicas: Annotated[int, Field(ge=1, le=10_000)] = Field(
        description="Minimum number of workers with which the job runs."
    )
    max_replicas: Annotated[int, Field(ge=1, le=10_000)] = Field(description="Maximum number of workers.")
    wait_seconds: Annotated[int, Field(ge=1, le=315_360_000)] = Field(
        60,
        description="How long a pod may be unschedulable at the start of an attempt; then the job runs without it.",
    )


class Volume(Model):
    """A volume source, as in a pod. hostPath is refused."""

    model_config = {"json_schema_extra": {"x-kubernetes-preserve-unknown-fields": True}, "extra": "allow"}

    host_path: Opaque | None = Field(None, description="Refused: the next attempt may run on another node.")


class Checkpoint(Model):
    """The volume for checkpoints, which every pod of every attempt mounts."""

    model_config = {"json_schema_extra": rules(*cel.CHECKPOINT)}

    path: Path = Field("/checkpoints", description="Mount path. The program reads it from ALLRANKS_CHECKPOINT_DIR.")
    keep: Annotated[int, Field(ge=1, le=10_000)] | None = Field(
        None,
        description="How many complete checkpoints rank 0 keeps: it deletes older ones that the program has reported "
        "with their paths, but not the one from which the attempt resumed. Default: all.",
    )
    every_seconds: Annotated[int, Field(ge=1, le=31_536_000)] | Literal["Auto"] | None = Field(
        None,
        description="How often checkpoint_due() of allranks.report is true. Auto: what loses the least time, by the "
        "measured duration of a save and the failures of the job. Default: never.",
        json_schema_extra={"x-kubernetes-int-or-string": True},
    )
    claim: Name | None = Field(None, description="Name of a PersistentVolumeClaim.")
    volume: Volume | None = Field(None, description="Any other volume source, for example {csi: ...} or {nfs: ...}.")
    sub_path: Text | None = Field(
        None, description="Folder of the volume that is mounted, which is created if it does not exist. Default: all."
    )
    secret: Name | None = Field(
        None,
        description="Name of a Secret with credentials for an address in resumeFrom, as for inputs. Default: the "
        "secret of the output that is uploaded to this address.",
    )


RESUME_FROM = rf"^([a-z0-9]([-a-z0-9]{{0,61}}[a-z0-9])?(/[0-9]{{1,18}})?|{ADDRESS})$"
ResumeFrom = Annotated[str, StringConstraints(max_length=512, pattern=RESUME_FROM)]
"""JOB, JOB/STEP or an address."""


class Hang(Model):
    """Hang detection."""

    timeout_seconds: Annotated[int, Field(ge=1, le=315_360_000)] = Field(
        description="The job hangs if no rank makes progress for this long."
    )
    action: Literal["Restart", "RestartUncounted", "Fail", "Ignore"] = Field(
        "Restart",
        description="What to do when the job hangs: Restart, which counts against maxRestarts, RestartUncounted, Fail "
        "or Ignore.",
    )


class Progress(Model):
    """How progress is reported and compared."""

    log_pattern: Text | None = Field(
        None, description="Regular expression with named groups (step, loss, ...) for programs that cannot be changed."
    )
    straggler_percent: Annotated[int, Field(ge=101, le=100_000)] = Field(
        150,
        description="A rank whose own work takes this many percent of the median of its peers is a straggler: 150 is "
        "one and a half times as long.",
    )
    automatic: bool = Field(
        True,
        description="Whether programs of Hugging Face, Lightning, Keras and Ray Train report their progress without a "
        "changed line, and NCCL is asked who is behind in a collective.",
    )
    on_not_finite: Literal["Warn", "Fail", "Ignore"] = Field(
        "Warn",
        description="What follows when a metric becomes NaN or infinite. Warn: an Event. Fail: the job also fails if "
        "it is the metric of the curve, loss for example. Ignore: nothing.",
    )


class Preflight(Model):
    """Tests that the pods with ranks make before their program starts. Without a check, nothing is tested."""

    gpu: bool | None = Field(
        None,
        description="Whether each GPU, or without GPUs the CPU, multiplies matrices whose product is exact, and its "
        "memory keeps patterns. It needs torch in the image.",
    )
    network: bool | None = Field(
        None,
        description="Whether ranks exchange data in rounds of pairs, so that the node is found that fails with all "
        "others. It needs torch in the image, and names no node among two.",
    )
    disk: bool | None = Field(
        None, description="Whether a file in the directory for temporary files is read as it was written."
    )
    timeout_seconds: Annotated[int, Field(ge=10, le=3600)] | None = Field(
        None,
        description="Longest time of all tests, with the wait of the network's test for the other ranks. A test "
        "without a result until then fails nothing. Default: 180.",
    )


Compatibility = Annotated[
    list[Literal["SageMaker", "AzureML", "Slurm"]],
    Field(min_length=1, max_length=3, json_schema_extra=rules(*cel.EACH_ONCE)),
]

_ROLE_KINDS: dict[str, str] = {}
for _framework in FRAMEWORKS.values():
    for _role, _kind in _framework.roles.items():
        _ROLE_KINDS.setdefault(_role, _kind.description)

ROLES: tuple[str, ...] = tuple(_ROLE_KINDS)
"""The roles of all frameworks."""


def _in_order(roles: dict[str, RoleSpec]) -> dict[str, RoleSpec]:
    """Return the roles in the order of the frameworks, then by name: the API server does not keep the order of a
    manifest."""
    usual = {role: roles[role] for role in ROLES if role in roles}
    return usual | {role: roles[role] for role in sorted(roles.keys() - usual.keys())}


Roles = Annotated[
    dict[str, RoleSpec],
    Field(max_length=16, json_schema_extra=rules(*cel.ROLES)),
    AfterValidator(_in_order),
]


class SpecBase(Container):
    """Specification of the job."""

    model_config = {"json_schema_extra": rules(*cel.ENVIRONMENT, *cel.spec(FRAMEWORKS))}

    framework: Literal[*FRAMEWORKS] = Field(  # type: ignore[valid-type]
        description="Framework of the job. It determines the roles and how ranks find one another.",
        json_schema_extra=rules(*cel.FIXED),
    )
    roles: Roles = Field(
        description="The job's pods by role. Most jobs need only worker. The framework determines the roles. "
        + " ".join(f"{role}: {text}" for role, text in _ROLE_KINDS.items())
    )
    pool: Name | None = Field(None, description="Name of the TrainingPool that describes the nodes to run on.")
    restart: Restart = Field(
        default_factory=Restart,
        description="What happens when a rank fails. Default: the defaults of its fields.",
        json_schema_extra={"default": {}},
    )
    elastic: Elastic | None = Field(None, description="Bounds for the number of workers of an elastic job.")
    success: Name | None = Field(
        None,
        description="The pods whose completion completes the job: All, or the pods of a role. Default: by framework: "
        "the master, chief or launcher; without one all workers (TensorFlow and elastic Horovod: worker 0).",
    )
    suspend: bool = Field(
        False, description="While true, the job has no pods. It continues when the value is false again."
    )
    managed_by: Text | None = Field(
        None, description="The controller that manages this job, if it is not this operator (as in batch/v1 Job)."
    )
    clean_pod_policy: Literal["Running", "All", "None"] = Field(
        "Running",
        description="Which pods are deleted when the job has finished: Running, those that still run, All or None.",
        json_schema_extra=rules(*cel.FIXED),
    )
    ttl_seconds_after_finished: Seconds | None = Field(
        None, description="Delete the job this long after it has finished."
    )
    active_deadline_seconds: Annotated[int, Field(ge=1, le=315_360_000)] | None = Field(
        None, description="Fail the job after this much time. Suspended time does not count."
    )
    startup_deadline_seconds: Annotated[int, Field(ge=1, le=315_360_000)] = Field(
        600,
        description="Fail the job if an image cannot be pulled, a container's configuration is invalid or volumes "
        "cannot be mounted for this long. Once all pods have run, the job waits instead. It is also the limit for the "
        "first step of ranks that announced their steps, or of all ranks that report if hang is set.",
        json_schema_extra=rules(*cel.FIXED),
    )
    start_together: Literal["Auto", "Always", "Never"] | None = Field(
        None,
        description="Whether programs start when all pods of the attempt are there, so that no rank waits for a peer "
        "without a pod: Auto, where the helper of allranks runs the program anyway, Always, where it runs also for "
        "that, or Never. Pods that do not restart as a group, and elastic jobs, start at once. Local runs ignore it. "
        "Default: Auto.",
        json_schema_extra=rules(*cel.FIXED),
    )
    scheduling: Scheduling = Field(
        default_factory=Scheduling,
        description="How the pods are placed on nodes. It cannot be changed in an existing job.",
        json_schema_extra={"default": {}} | rules(*cel.SCHEDULING, *cel.FIXED),
    )
    checkpoint: Checkpoint | None = Field(None, description="The volume for checkpoints. Default: no volume.")
    resume_from: ResumeFrom | None = Field(
        None,
        description="The checkpoints from which the job starts: JOB or JOB/STEP, another job of the namespace, or an "
        "address, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, https://HOST/FILE or "
        "hf://models/OWNER/NAME. They are copied into its own folder first. Of the folders step-STEP that allranks has "
        "uploaded to an address, the newest complete one is taken, and of all others everything. It needs checkpoint.",
    )
    code: Code | None = Field(
        None,
        description="The code of the program. A manifest for allranks may name a directory instead, for example "
        "code: . Default: what the image has.",
    )
    compatibility: Compatibility | None = Field(
        None,
        description="Systems whose variables the ranks get in addition, so that scripts written for them run "
        "unchanged: SageMaker (SM_HOSTS, SM_CHANNEL_NAME, SM_MODEL_DIR, SM_HPS, ...), AzureML (AZ_BATCH_MASTER_NODE, "
        "AZUREML_NODE_COUNT, ...) and Slurm (SLURM_PROCID, SLURM_NTASKS, ...). Default: none.",
    )
    pod_security: Literal["Auto", "Restricted", "Baseline", "Image"] | None = Field(
        None,
        description="Security context of pods, where the template sets none. Restricted: not root, no capabilities. "
        "Baseline: the user of the image, also root, with the usual capabilities. Both without privilege escalation, "
        "and with the seccomp profile RuntimeDefault. Image: what the cluster gives pods without a security context. "
        "Auto: Restricted if the namespace enforces it, else Baseline. Default: the operator's, which is Auto.",
    )
    packages: Packages | None = Field(
        None,
        description="Python packages that pip installs in each pod before the start, for example [timm==1.0].",
    )
    inputs: Inputs | None = Field(
        None, description="Data that the program reads: fetched before the ranks start, or mounted. Default: none."
    )
    outputs: Outputs | None = Field(
        None,
        description="Directories that are uploaded when the program has ended, and checkpoints while it runs.",
    )
    hang: Hang | None = Field(
        None, description="Hang detection for programs that report their steps. Default: no hang detection."
    )
    preflight: Preflight | None = Field(
        None,
        description="Tests that the pods with ranks make before their program starts. It replaces the pool's. Default: "
        "the pool's, or nothing until two errors of devices on one node.",
    )
    progress: Progress | None = Field(
        None, description="How progress is reported and compared. Default: the program's own reports."
    )
    notify: Notifications | None = Field(
        None, description="Who is notified when the job ends, fails, hangs, is preempted or has slow ranks."
    )
    utilization: Utilization | None = Field(
        None, description="What happens if the job trains too little. Default: the pool's `utilization`, or nothing."
    )

    @property
    def starting_point(self) -> StartingPoint | None:
        """The address in resumeFrom as an input; None if it names a job, or nothing."""
        address = self.resume_from or ""
        if "://" not in address:
            return None
        to_same = (output for output in self.outputs or () if output.to.rstrip("/") == address.rstrip("/"))
        destination = next((output for output in to_same if output.when == "Checkpoint"), None)
        secret = self.checkpoint.secret if self.checkpoint else None
        return StartingPoint(
            name=RESUME_INPUT,
            source=address,
            secret=secret or (destination.secret if destination else None),
            may_be_empty=destination is not None,
        )

    @property
    def sources(self) -> tuple[Input, ...]:
        """The inputs, and the starting point."""
        return (*(self.inputs or ()), *([start] if (start := self.starting_point) else ()))

    def field_of(self, source: str) -> str:
        """Return the path of the field of one of the sources."""
        names = [item.name for item in self.inputs or ()]
        return f"spec.inputs[{names.index(source)}]" if source in names else "spec.resumeFrom"

    def pool_of(self, role: str) -> str | None:
        """Return the name of the TrainingPool of a role."""
        return self.roles[role].pool or self.pool

    def pool_field(self, role: str) -> str:
        """Return the path of the field that names the TrainingPool of a role."""
        return f"spec.roles.{role}.pool" if self.roles[role].pool else "spec.pool"

    @property
    def pools(self) -> dict[str, str]:
        """Field path -> the TrainingPool that it names, for the fields that roles use."""
        return {self.pool_field(role): pool for role in self.roles if (pool := self.pool_of(role))}

    @property
    def options(self) -> Any:
        """The options of the job's framework, or its defaults."""
        return getattr(self, self.framework) or FRAMEWORKS[self.framework].options()


Spec: type[SpecBase] = create_model(
    "Spec",
    __base__=SpecBase,
    __doc__=SpecBase.__doc__,
    **{
        name: (
            framework.options | None,
            Field(
                None,
                description=f"Options of {framework.description}, for framework {name} only. "
                "Default: the defaults of its fields.",
            ),
        )
        for name, framework in FRAMEWORKS.items()
    },  # type: ignore[call-overload]
)


class Owner(Model):
    """The part of an ownerReference that decisions need."""

    model_config = {"extra": "ignore"}

    kind: Text = ""
    controller: bool | None = None


class Metadata(Model):
    """The part of an object's metadata that decisions need."""

    model_config = {"extra": "ignore"}

    name: Name
    namespace: Name = "default"
    uid: Text = ""
    generation: Count = 1
    creation_timestamp: datetime | None = Field(None, strict=False)
    deletion_timestamp: datetime | None = Field(None, strict=False)
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: list[Owner] = []


class Job(Model):
    """A `DistributedTraining`, without its status."""

    model_config = {"extra": "ignore"}

    metadata: Metadata
    spec: SpecBase

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def namespace(self) -> str:
        return self.metadata.namespace
