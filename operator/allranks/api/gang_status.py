"""The type of `status.gang`."""

from __future__ import annotations

from pydantic import Field

from allranks.fields import GangBackend, Model, Name, Replicas


class GangStatus(Model):
    """How the pods of the current attempt are placed together."""

    backend: GangBackend = Field(description="What places them: Native, Kueue, Volcano or Coscheduling.")
    api_version: Name | None = Field(None, description="API version of the attempt's PodGroup, if there is one.")
    min_count: Replicas = Field(description="Pods that are placed together or not at all.")
