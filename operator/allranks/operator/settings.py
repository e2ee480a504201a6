"""What the operator can be told: by environment (`ALLRANKS_...`), or by the flag of the same name, which wins.

`docs/reference/settings.md` is generated from here.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from allranks.core.manifests.scheduling import NODE_LOST_SECONDS

ENV_PREFIX = "ALLRANKS_"


class Settings(BaseSettings):
    """Settings of `allranks operator`."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True, extra="ignore")

    namespaces: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="Serve these namespaces only (comma-separated): a Role in each suffices. Empty: all of them."
    )
    pools: bool = Field(
        True,
        description="Serve TrainingPools, which are cluster-scoped: needs a ClusterRole that reads them. Without it "
        "a job that names a pool is told so.",
    )
    helper_image: str = Field(
        "ghcr.io/allranks/operator:latest",
        description="Image of the init container that brings helpers into pods: the operator's own.",
    )
    node_lost_seconds: Annotated[int, Field(ge=0, le=86_400)] = Field(
        NODE_LOST_SECONDS,
        description="So long after Kubernetes found a node to be gone (about 50 s) its pods are given up and the job "
        "restarts. What a job's template tolerates comes first.",
    )
    leader_election: bool = Field(
        False, description="Hold a Lease while acting: needed as soon as there is more than one replica."
    )
    lease_name: str = Field("allranks-operator", description="Name of the Lease.")
    lease_namespace: str = Field("", description="Namespace of the Lease. Empty: the operator's own.")
    lease_seconds: Annotated[int, Field(ge=3, le=600)] = Field(
        10, description="So long after the holder's last sign of life another replica takes over."
    )
    address: str = Field(
        "", description="Where /metrics, /healthz and /readyz are served. Empty: on all addresses, IPv4 and IPv6."
    )
    port: Annotated[int, Field(ge=0, le=65535)] = Field(8080, description="Port of the same; 0 takes a free one.")
    report_url: str = Field(
        "",
        description="What pods are told to report their progress to: the URL of a Service of the port below, "
        "`http://HOST:PORT/v1/report`. Empty: nothing, and nobody listens.",
    )
    report_port: Annotated[int, Field(ge=0, le=65535)] = Field(
        8081, description="Port on which reports are taken; 0 takes a free one."
    )
    concurrency: Annotated[int, Field(ge=1, le=1024)] = Field(
        32, description="Requests to the API server at the same time."
    )
    request_timeout: Annotated[float, Field(gt=0, le=3600)] = Field(
        30.0, description="Seconds after which a request that was not answered is tried again."
    )
    watch_timeout: Annotated[int, Field(ge=5, le=86_400)] = Field(
        240,
        description="Seconds after which a watch is renewed; one that is silent for longer fails the liveness probe.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="What is logged.")
    log_format: Literal["json", "text"] = Field("json", description="json: one object per line; text: for people.")

    @field_validator("namespaces", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value
