"""Deletes and patches objects of optional kinds, as a plan says."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

import msgspec

from allranks.core.facts.model import Manifest, ObjectPatch, RejectedCreate
from allranks.kube import paths
from allranks.kube.client import Client
from allranks.kube.errors import Conflict, NotFound, Refused

logger = logging.getLogger("allranks.jobs")


class Outcome(NamedTuple):
    rejected: dict[tuple[str, str], RejectedCreate]
    """What the API server rejected, by kind and name."""
    conflicts: bool
    """An object changed meanwhile. The watch usually shows it; a retry does not depend on that."""


async def apply(
    client: Client,
    removals: Sequence[Manifest],
    patches: Sequence[ObjectPatch],
    remember: Callable[[Manifest], None],
    forget: Callable[[Manifest], None],
) -> Outcome:
    """Delete, then patch, one after the other.

    An object that changed meanwhile, or is gone, is left alone: the core decides again. Raises Unavailable, Fenced.
    """
    rejected: dict[tuple[str, str], RejectedCreate] = {}
    conflicts = False

    async def change(manifest: Manifest, request: Awaitable[bytes]) -> None:
        nonlocal conflicts
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        try:
            answer: Manifest = msgspec.json.decode(await request)
        except NotFound:
            return
        except Conflict:
            conflicts = True
        except Refused as error:
            rejected[kind, name] = RejectedCreate(kind, name, error.reason or "Refused", str(error))
            logger.warning("the change of %s %s was rejected: %s", kind, name, error)
        else:
            if answer.get("kind") == kind and answer["metadata"].get("deletionTimestamp") is None:
                remember(answer)

    for manifest in removals:
        metadata = manifest["metadata"]
        try:
            # With the version, the observed state is the last one: a later event cannot bring the object back.
            await client.delete(paths.item_of(manifest), metadata["uid"], metadata["resourceVersion"])
        except NotFound:
            continue
        except Conflict:
            conflicts = True
        except Refused as error:
            key = manifest["kind"], metadata["name"]
            rejected[key] = RejectedCreate(*key, error.reason or "Refused", str(error))
            logger.warning("the deletion of %s %s was rejected: %s", *key, error)
        else:
            forget(manifest)
    for patch in patches:
        current = patch.object["metadata"]
        guard = {"uid": current["uid"], "resourceVersion": current["resourceVersion"]}
        metadata = {**patch.change.get("metadata", {}), **guard}
        path = paths.item_of(patch.object, patch.subresource)
        await change(patch.object, client.patch(path, {**patch.change, "metadata": metadata}))
    return Outcome(rejected, conflicts)
