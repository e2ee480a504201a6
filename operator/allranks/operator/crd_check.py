"""Waits for the CustomResourceDefinitions, and compares them with the ones that this operator was built for.

An API server with older ones silently drops the fields that they do not have.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

import msgspec

from allranks.api.crd import RESOURCES, differences, root_schema
from allranks.api.job import GROUP, KIND, PLURAL, VERSION
from allranks.kube import paths
from allranks.kube.client import Client
from allranks.kube.errors import ApiError, NotFound, Refused
from allranks.operator.metrics import Metrics

logger = logging.getLogger("allranks.operator")

_SHOWN = 5


async def wait_for_crds(client: Client, poll: float) -> None:
    """Wait until the API server serves our resource and lists our API group, which happens a moment later: kopf's
    discovery runs once. Both may still be served right after the CRDs were deleted; then kopf ends the session."""
    logged = False
    while True:
        with contextlib.suppress(NotFound):
            if PLURAL.encode() in await client.get(paths.GROUP_VERSION):
                if f'"{GROUP}"'.encode() in await client.get(paths.GROUPS):
                    return
                await asyncio.sleep(poll / 10)
                continue
        if not logged:
            logger.error("the CustomResourceDefinitions are not installed (kubectl apply -f crds/): waiting")
            logged = True
        await asyncio.sleep(poll)


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
