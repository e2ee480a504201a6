"""The types of those fields of a pod template that the core reads and merges.

`template` has no schema in the CRD, which would be 6,000 lines. The API server checks the rest when a pod is created.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError


class _Part(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)


class _Named(_Part):
    name: str


class _Mount(_Part):
    name: str
    mountPath: str


class _ContainerPort(_Part):
    containerPort: int


class _Resources(_Part):
    limits: dict[str, int | str] | None = None
    requests: dict[str, int | str] | None = None


class _Device(_Part):
    devicePath: str


class _Container(_Named):
    image: str | None = None
    command: list[str] | None = None
    args: list[str] | None = None
    env: list[_Named] | None = None
    ports: list[_ContainerPort] | None = None
    volumeMounts: list[_Mount] | None = None
    volumeDevices: list[_Device] | None = None
    resources: _Resources | None = None
    securityContext: dict[str, Any] | None = None
    restartPolicy: str | None = None


class _Toleration(_Part):
    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None
    tolerationSeconds: int | None = None


class _HostAlias(_Part):
    ip: str
    hostnames: list[str] | None = None


class _Spread(_Part):
    topologyKey: str


class _NodeAffinity(_Part):
    preferredDuringSchedulingIgnoredDuringExecution: list[dict[str, Any]] | None = None


class _Affinity(_Part):
    nodeAffinity: _NodeAffinity | None = None


class _PodSpec(_Part):
    containers: list[_Container] | None = None
    initContainers: list[_Container] | None = None
    volumes: list[_Named] | None = None
    imagePullSecrets: list[_Named] | None = None
    resourceClaims: list[_Named] | None = None
    hostAliases: list[_HostAlias] | None = None
    topologySpreadConstraints: list[_Spread] | None = None
    tolerations: list[_Toleration] | None = None
    affinity: _Affinity | None = None
    securityContext: dict[str, Any] | None = None
    terminationGracePeriodSeconds: int | None = Field(None, ge=0, le=315_360_000)
    restartPolicy: str | None = None


class _Metadata(_Part):
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class PodTemplate(_Part):
    """A PodTemplateSpec. Fields that the core does not read are not checked."""

    metadata: _Metadata | None = None
    spec: _PodSpec | None = None


def is_valid(template: Any) -> bool:
    """Return whether a template has no `errors`, in a fraction of the time that a list of them takes."""
    try:
        PodTemplate.model_validate(template)
    except ValidationError:
        return False
    return True


def errors(template: Any) -> list[Any]:
    """Return pydantic's error details; none for a valid template."""
    try:
        PodTemplate.model_validate(template)
    except ValidationError as error:
        return list(error.errors(include_url=False))
    return []
