"""The variables of other systems (`compatibility`), so that scripts written for these run unchanged.

Each system has a function for what all pods of a role have in common and one for what each replica has of its own.
SageMaker's variables are the ones of its training toolkit, Azure's the ones of Azure ML, Azure Batch and Batch AI, and
Slurm's the ones of srun.
Values that grow with the number of replicas are in `Shared.variables`. The user may set every variable instead.
"""

from __future__ import annotations

import json
import posixpath
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import accumulate, groupby
from typing import Any

from allranks.api.data import upper
from allranks.api.job import Job
from allranks.api.sweep_values import VARIABLE_PREFIX
from allranks.core.facts import naming, tpus
from allranks.core.facts.model import Manifest
from allranks.frameworks.base import AttemptContext, Framework, Replica, Shared, Wire, Wiring

_SM_HOSTS, _AZ_HOSTS, _AZ_NODES = "ALLRANKS_SM_HOSTS", "ALLRANKS_AZ_HOSTS", "ALLRANKS_AZ_NODES"
"""Names in `Shared.variables`."""
_PORT = 6105
"""Port of Azure's MPI jobs, for frameworks that have none of their own."""
_NUMBER = re.compile(r"-?[0-9.][0-9.e+-]*", re.IGNORECASE)
_REFERENCE = re.compile(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)")
_VARIABLE_NAME = re.compile(r"[-._A-Za-z0-9]+")
_ON_LOOPBACK = 250
"""Addresses of 127.0.0.0/24 that stand for hosts of a local run, before those of the next 256 follow."""


def wire(job: Job, framework: Framework, context: AttemptContext) -> Wire:
    """Return the wiring of the framework, with the variables of the systems in `compatibility` as defaults."""
    inner = tpus.wire(framework, context)
    if not job.spec.compatibility:
        return inner
    systems = _Systems(job, framework, context)

    def wiring(replica: Replica) -> Wiring:
        plain = inner(replica)
        added = {**systems.of_role(replica.role), **systems.of_replica(replica)}
        defaults = {name: value for name, value in added.items() if name not in plain.env}
        return replace(plain, shared_env=(*plain.shared_env, *systems.shared), defaults={**defaults, **plain.defaults})

    return wiring


def shared(job: Job, framework: Framework, context: AttemptContext) -> Shared:
    """Return what the pods of the attempt have in common, with the lists of hosts."""
    plain = tpus.shared(framework, context)
    if not job.spec.compatibility:
        return plain
    return replace(plain, variables={**plain.variables, **_Systems(job, framework, context).shared})


def names(job: Job, framework: Framework, context: AttemptContext) -> dict[str, tuple[str, ...]]:
    """Return role -> names of variables that all its pods have in common. mpirun passes them on to ranks."""
    systems = _Systems(job, framework, context)
    return {role: tuple(systems.of_role(role)) for role in context.commands}


def references(job: Job, framework: Framework, context: AttemptContext, role: str) -> list[Manifest]:
    """Return variables whose value the kubelet knows: the CPUs of the container, which has those of its node without a
    limit."""
    chosen = job.spec.compatibility or ()
    single = _tasks(framework, context, role) == 1
    cpus = [
        *(["SM_NUM_CPUS"] if "SageMaker" in chosen else []),
        *(["SLURM_CPUS_ON_NODE", *(["SLURM_CPUS_PER_TASK"] if single else [])] if "Slurm" in chosen else []),
    ]
    limit = {"resourceFieldRef": {"containerName": naming.TRAINER, "resource": "limits.cpu"}}
    return [{"name": name, "valueFrom": limit} for name in cpus]


class _Systems:
    """The variables of the systems that a job names."""

    def __init__(self, job: Job, framework: Framework, context: AttemptContext) -> None:
        self._job, self._framework, self._context = job, framework, context
        self._chosen = tuple(job.spec.compatibility or ())
        self._ranked = context.ranked()
        self._tasks = [_tasks(framework, context, replica.role) for replica in self._ranked]
        self._first_tasks = [0, *accumulate(self._tasks)]
        self.of_role = cache(self._of_role)
        self.shared = {name: value for system in self._chosen for name, value in self._shared(system)}

    def _of_role(self, role: str) -> dict[str, str]:
        make: Mapping[str, Callable[[str], Mapping[str, str]]] = {
            "SageMaker": self._sagemaker,
            "AzureML": self._azure,
            "Slurm": self._slurm,
        }
        # mpirun would start the ranks with srun.
        chosen = [system for system in self._chosen if system != "Slurm" or self._framework.roles[role].ranked]
        return {name: value for system in chosen for name, value in make[system](role).items()}

    def of_replica(self, replica: Replica) -> dict[str, str]:
        """Return the variables of one replica; none for a replica without ranks, which is no host of these systems."""
        if replica.node_rank is None:
            return {}
        make: Mapping[str, Callable[[Replica], Mapping[str, str]]] = {
            "SageMaker": self._sagemaker_host,
            "AzureML": self._azure_node,
            "Slurm": self._slurm_node,
        }
        return {name: value for system in self._chosen for name, value in make[system](replica).items()}

    def _shared(self, system: str) -> Iterator[tuple[str, str]]:
        hosts = [self._host(replica) for replica in self._ranked]
        if system == "SageMaker":
            yield _SM_HOSTS, _compact(hosts)
        if system == "AzureML":
            yield _AZ_HOSTS, ",".join(hosts)
            yield _AZ_NODES, ";".join(hosts)

    def _host(self, replica: Replica) -> str:
        """Return the name by which the others reach a replica. Replicas of a local run have different addresses of the
        loopback network, because scripts look for their own host among all."""
        if not self._context.local:
            return self._context.address(replica, 0)[0]
        above, below = divmod(replica.node_rank or 0, _ON_LOOPBACK)
        return f"127.0.{above}.{below + 1}"

    def _hyperparameters(self, role: str) -> dict[str, Any]:
        """Return the options of the program and the parameters of a sweep, as SageMaker passes them: JSON values, or
        text."""
        set_by_user = self._context.values.get(role, {})
        parameters = {
            name.removeprefix(VARIABLE_PREFIX).lower(): value
            for name, value in set_by_user.items()
            if name.startswith(VARIABLE_PREFIX)
        }
        named = {**parameters, **dict(options(self._arguments(role)))}
        return {name: _value(value) for name, value in named.items()}

    def _arguments(self, role: str) -> list[str]:
        """Return the arguments of the program, with the values of the user's variables."""
        variables = self._context.values.get(role, {})
        return [_expanded(argument, variables) for argument in program_arguments(self._context.commands[role])]

    # --- SageMaker ---

    def _sagemaker(self, role: str) -> dict[str, str]:
        spec = self._job.spec
        channels = {item.name: item.path for item in spec.inputs or () if item.path}
        outputs = {item.name: item.path for item in spec.outputs or ()}
        parameters = self._hyperparameters(role)
        output = dict.fromkeys(("SM_OUTPUT_DIR", "SM_OUTPUT_DATA_DIR"), outputs.get("output"))
        config = {"TrainingInputMode": "File", "S3DistributionType": "FullyReplicated", "RecordWrapperType": "None"}
        named = {f"SM_HP_{name.upper()}": _text(value) for name, value in parameters.items()}
        return {
            "TRAINING_JOB_NAME": self._job.name,
            "SM_HOSTS": f"$({_SM_HOSTS})",
            "SM_NUM_GPUS": str(self._context.gpus.get(role, 0)),
            "SM_CHANNELS": _compact(sorted(channels)),
            **{f"SM_CHANNEL_{upper(name)}": path for name, path in channels.items()},
            "SM_INPUT_DATA_CONFIG": _compact(dict.fromkeys(channels, config)),
            **self._input_directory(channels),
            **({"SM_MODEL_DIR": outputs["model"]} if "model" in outputs else {}),
            **{name: path for name, path in output.items() if path},
            "SM_HPS": _compact(parameters),
            **{name: value for name, value in named.items() if _VARIABLE_NAME.fullmatch(name)},
            "SM_USER_ARGS": _compact(self._arguments(role)),
            "SM_LOG_LEVEL": "20",
        }

    def _input_directory(self, channels: Mapping[str, str]) -> dict[str, str]:
        """Return SM_INPUT_DIR if the inputs are in DIRECTORY/data, as in SageMaker. A local run has no such
        directory."""
        parents = {posixpath.dirname(path.rstrip("/")) for path in channels.values()}
        if self._context.local or len(parents) != 1 or posixpath.basename(parent := parents.pop()) != "data":
            return {}
        return {"SM_INPUT_DIR": posixpath.dirname(parent)}

    def _sagemaker_host(self, replica: Replica) -> dict[str, str]:
        host = self._host(replica)
        role = self.of_role(replica.role)
        resources = f'{{"current_host":{json.dumps(host)},"hosts":$({_SM_HOSTS})}}'
        environment = {
            "channel_input_dirs": {item.name: item.path for item in self._job.spec.inputs or () if item.path},
            "current_host": host,
            "hyperparameters": json.loads(role["SM_HPS"]),
            "input_data_config": json.loads(role["SM_INPUT_DATA_CONFIG"]),
            "job_name": self._job.name,
            "log_level": 20,
            "num_gpus": self._context.gpus.get(replica.role, 0),
            **{
                name.removeprefix("SM_").lower(): role[name]
                for name in ("SM_INPUT_DIR", "SM_MODEL_DIR", "SM_OUTPUT_DIR", "SM_OUTPUT_DATA_DIR")
                if name in role
            },
        }
        everything = f'{_compact(environment)[:-1]},"hosts":$({_SM_HOSTS}),"resource_config":{resources}}}'
        return {"SM_CURRENT_HOST": host, "SM_RESOURCE_CONFIG": resources, "SM_TRAINING_ENV": everything}

    # --- Azure ML ---

    def _azure(self, role: str) -> dict[str, str]:
        spec, context = self._job.spec, self._context
        address, port = context.address(self._ranked[0], getattr(context.options, "port", _PORT))
        inputs = {item.name.replace("-", "_"): item.path for item in spec.inputs or () if item.path}
        outputs = {item.name.replace("-", "_"): item.path for item in spec.outputs or ()}
        parameters = {name.replace("-", "_"): _text(value) for name, value in self._hyperparameters(role).items()}
        return {
            "AZUREML_RUN_ID": f"{self._job.name}-{self._job.metadata.uid[:8]}",
            "AZUREML_NODE_COUNT": str(len(self._ranked)),
            "AZ_BATCH_MASTER_NODE": f"{address}:{port}",
            "AZ_BATCHAI_MPI_MASTER_NODE": address,
            "AZ_BATCHAI_JOB_MASTER_NODE_IP": address,
            "AZ_BATCH_HOST_LIST": f"$({_AZ_HOSTS})",
            "AZ_BATCH_NODE_LIST": f"$({_AZ_NODES})",
            **{f"AZUREML_DATAREFERENCE_{name}": path for name, path in inputs.items()},
            **{f"AZURE_ML_INPUT_{name}": path for name, path in inputs.items()},
            **{f"AZURE_ML_OUTPUT_{name}": path for name, path in outputs.items()},
            **{f"AZ_BATCHAI_INPUT_{name.upper()}": path for name, path in inputs.items()},
            **{f"AZ_BATCHAI_OUTPUT_{name.upper()}": path for name, path in outputs.items()},
            **{
                f"AZUREML_PARAMETER_{name}": value
                for name, value in parameters.items()
                if _VARIABLE_NAME.fullmatch(name)
            },
        }

    def _azure_node(self, replica: Replica) -> dict[str, str]:
        rank = str(replica.node_rank)
        return {
            "NODE_RANK": rank,
            "AZUREML_CR_NODE_RANK": rank,
            "AZ_BATCHAI_TASK_INDEX": rank,
            "AZ_BATCH_IS_CURRENT_NODE_MASTER": str(replica.node_rank == 0).lower(),
        }

    # --- Slurm ---

    def _slurm(self, role: str) -> dict[str, str]:
        counts = self._tasks
        number, nodes = str(zlib.crc32(self._job.metadata.uid.encode()) >> 1), str(len(counts))
        nodelist = self._nodelist()
        tasks = _tasks(self._framework, self._context, role)
        cpus = self._context.cpus.get(role, 0) // max(1, tasks)
        alike = len(set(counts)) == 1
        groups = [(count, len(list(group))) for count, group in groupby(counts)]
        per_node = ",".join(f"{count}(x{times})" if times > 1 else str(count) for count, times in groups)
        return {
            "SLURM_JOB_ID": number,
            "SLURM_JOBID": number,
            "SLURM_JOB_NAME": self._job.name,
            "SLURM_NNODES": nodes,
            "SLURM_JOB_NUM_NODES": nodes,
            "SLURM_NODELIST": nodelist,
            "SLURM_JOB_NODELIST": nodelist,
            "SLURM_NTASKS": str(sum(counts)),
            "SLURM_NPROCS": str(sum(counts)),
            "SLURM_TASKS_PER_NODE": per_node,
            **({"SLURM_NTASKS_PER_NODE": str(counts[0])} if alike else {}),
            **({"SLURM_CPUS_PER_TASK": str(cpus)} if tasks > 1 and cpus else {}),
            **({"SLURM_GPUS_ON_NODE": str(gpus)} if (gpus := self._context.gpus.get(role, 0)) else {}),
            **({"SLURM_RESTART_COUNT": str(self._context.attempt)} if self._context.attempt else {}),
        }

    def _slurm_node(self, replica: Replica) -> dict[str, str]:
        assert replica.node_rank is not None
        return {
            "SLURM_NODEID": str(replica.node_rank),
            "SLURMD_NODENAME": self._host(replica),
            # Of the first process: the helper that starts several ones sets these for each.
            "SLURM_PROCID": str(self._first_tasks[replica.node_rank]),
            "SLURM_LOCALID": "0",
        }

    def _nodelist(self) -> str:
        """Return the hosts as Slurm writes them: `job-worker-[0-3]-0.job.team.svc`."""
        hosts = [re.match(r"(.*?)(\d+)((?:-\d+\..*)?)$", self._host(replica)) for replica in self._ranked]
        parts = [(host[1], int(host[2]), host[3]) for host in hosts if host]
        out = []
        for (before, after), group in groupby(parts, lambda part: (part[0], part[2])):
            numbers = [number for _, number, _ in group]
            within = f"[{numbers[0]}-{numbers[-1]}]" if len(numbers) > 1 else str(numbers[0])
            out.append(f"{before}{within}{after}")
        return ",".join(out)


def _tasks(framework: Framework, context: AttemptContext, role: str) -> int:
    """Return the number of processes that allranks starts in each pod of a role, which Slurm calls tasks. torchrun is
    one task and starts the others itself, as under Slurm."""
    return 1 if framework.command_starts_ranks else max(1, framework.processes(context, role))


def program_arguments(command: Sequence[str]) -> Sequence[str]:
    """Return the arguments after the program of a command: after the first *.py file, `-m MODULE`, or the first word.

    `[torchrun, --nproc-per-node=2, train.py, --lr, "0.1"]` has `--lr 0.1`."""
    for index, word in enumerate(command):
        if word.endswith((".py", ".sh")):
            return command[index + 1 :]
    for index, word in enumerate(command):
        if word == "-m":
            return command[index + 2 :]
    return command[1:]


def options(arguments: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Yield (name, value) of options, `--name value`, `--name=value` or `-n value`; None for an option without a
    value."""
    for name, value in parsed(arguments):
        if name:
            yield name.lstrip("-"), value


def parsed(arguments: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Yield (name with its dashes, value) of options, and ("", word) of other words."""
    index = 0
    while index < len(arguments):
        name, equals, value = arguments[index].partition("=")
        index += 1
        if not name.startswith("-") or not name.lstrip("-") or _NUMBER.fullmatch(name):
            yield "", arguments[index - 1]
            continue
        following = arguments[index] if index < len(arguments) else "-"
        if equals:
            yield name, value
        elif not following.startswith("-") or _NUMBER.fullmatch(following):
            index += 1
            yield name, following
        else:
            yield name, None


def _expanded(text: str, variables: Mapping[str, str]) -> str:
    return _REFERENCE.sub(lambda match: variables.get(match[1], match[0]), text)


def _value(text: str | None) -> Any:
    """Return a hyperparameter as SageMaker reads it: JSON, or else the text."""
    try:
        return None if text is None else json.loads(text, parse_constant=str)
    except ValueError:
        return text


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else _compact(value)


def _compact(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
