"""Compares the installed CustomResourceDefinitions with those that this operator was built for.

An API server with older ones silently drops the fields that they do not have.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec

from allranks.api.crd import RESOURCES, differences, root_schema
from allranks.api.job import GROUP, KIND, VERSION
from allranks.kube import paths
from allranks.kube.client import Client
from allranks.kube.errors import ApiError, NotFound, Refused
from allranks.operator.metrics import Metrics

logger = logging.getLogger("allranks.operator")

_SHOWN = 5


async def run(client: Client, metrics: Metrics, interval: float) -> None:
    """Check every `interval` seconds, forever. Does nothing without the right to read CRDs; the metric then shows only
    status fields that were dropped."""
    logged: list[str] = []
    while True:
        try:
            missing = await missing_fields(client)
        except Refused as error:
            logger.debug("cannot compare the CRDs: %s", error)
        except (ApiError, msgspec.DecodeError, LookupError, TypeError) as error:
            # The comparison is a service: no answer of a proxy in between may end the session.
            logger.warning("cannot compare the CRDs: %s", error)
        else:
            metrics.crds_outdated.set(1 if missing else 0)
            if missing and missing != logged:
                more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
                fields = ", ".join(missing[:_SHOWN]) + more
                logger.error("the CRDs are older than the operator: apply crds/ of this version; missing: %s", fields)
            logged = missing
        await asyncio.sleep(interval)


async def missing_fields(client: Client) -> list[str]:
    """Return the fields and values of our jobs and pools that the API server would drop or reject. Raises ApiError."""
    out: list[str] = []
    for kind, resource in RESOURCES.items():
        try:
            crd = msgspec.json.decode(await client.get(f"{paths.CRDS}/{resource.plural}.{GROUP}"))
        except NotFound:
            if kind == KIND:
                raise
            continue  # an operator without pools
        for version in crd["spec"]["versions"]:
            if version["name"] == VERSION:
                out += differences(root_schema(kind), version["schema"]["openAPIV3Schema"], kind)
    return out
