"""Counts the GPUs that a container requests: one rule for the operator, `allranks run`, the metrics and the reports.

It reads the pod alone, so each entry of `resources.claims` counts as one GPU (`authoring/checks/notes.py` tells the
author). Beside GPUs in the limits, claims are other devices: the channel of a ComputeDomain, a network card.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from allranks.core.facts.quantity import whole_number

_GPU = re.compile(
    r"""
    [^/]+/gpu(\.shared)?                        # nvidia.com/gpu, amd.com/gpu; a time-sliced one can be renamed .shared
    | nvidia\.com/mig-\w[\w.-]*                 # MIG profiles: mig-1g.10gb, mig-1c.3g.20gb, mig-1g.10gb.me
    | amd\.com/[sdqtc]px_nps\d                  # partitions of AMD's MI300: cpx_nps4
    | gpu\.intel\.com/(i915|xe)                 # not i915_monitoring, nor millicores, memory.max and tiles
    | habana\.ai/gaudi
    """,
    re.VERBOSE,
)


def is_gpu(resource: str) -> bool:
    """Return whether an extended resource counts GPUs, or slices that a process uses as it uses a GPU."""
    if resource.startswith(_DEVICE_CLASS):
        return is_gpu_class(resource.removeprefix(_DEVICE_CLASS))
    return _GPU.fullmatch(resource) is not None


_DEVICE_CLASS = "deviceclass.resource.kubernetes.io/"
"""Prefix of the extended resource that each DeviceClass has by itself (KEP-5004)."""


def gpus(resources: Mapping[str, object] | None, resource: str = "") -> int:
    """Return the number of GPUs that a container's `resources` request: extended resources of every vendor, or claims.

    `resource` is a further name to count, from a pool. Limits count; requests count only if no limit is a GPU.
    """
    return _extended(resources or {}, resource) or claims(resources)


def claims(resources: Mapping[str, object] | None) -> int:
    """Return the number of entries of `resources.claims`, which name a claim of the pod or one request of it."""
    return len(_entries(resources))


def _entries(resources: Mapping[str, object] | None) -> list[Mapping[str, str]]:
    entries = (resources or {}).get("claims")
    return [entry for entry in entries if isinstance(entry, Mapping)] if isinstance(entries, list) else []


def _extended(resources: Mapping[str, object], resource: str) -> int:
    for part in ("limits", "requests"):
        amounts = resources.get(part)
        if isinstance(amounts, Mapping):
            gpu_amounts = [amount for name, amount in amounts.items() if is_gpu(name) or name == resource]
            if gpu_amounts:
                return sum(whole_number(amount) for amount in gpu_amounts)
    return 0


def of_claim(spec: Mapping[str, object], request: str | None = None) -> int | None:
    """Return the number of GPUs of a ResourceClaim's `spec`, or of one of its requests.

    None if the spec does not determine the number: all matching devices, or the first available one of several requests
    with different counts.
    """
    devices = spec.get("devices")
    requests = devices.get("requests") if isinstance(devices, Mapping) else None
    asked = [item for item in requests or () if isinstance(item, Mapping) and request in (None, item.get("name"))]
    counts = [_of_request(item) for item in asked]
    return None if None in counts else sum(count or 0 for count in counts)


def _of_request(request: Mapping[str, object]) -> int | None:
    alternatives = request.get("firstAvailable")
    if isinstance(alternatives, Sequence):
        counts = {_of_request(alternative) for alternative in alternatives if isinstance(alternative, Mapping)}
        return counts.pop() if len(counts) == 1 else None
    exactly = request.get("exactly", request)  # v1beta1 has its fields in the request itself
    if not isinstance(exactly, Mapping) or not is_gpu_class(str(exactly.get("deviceClassName"))):
        return 0
    if exactly.get("adminAccess"):
        return 0  # it monitors devices that others use
    return None if exactly.get("allocationMode") == "All" else whole_number(exactly.get("count", 1))


def is_gpu_class(name: str) -> bool:
    """Return whether a DeviceClass is of GPUs, by the names of the vendors' drivers.

    They are gpu.nvidia.com, mig.nvidia.com, gpu.amd.com, gpu.intel.com, gaudi.intel.com. An administrator may choose
    any other name.
    """
    return re.fullmatch(r"(gpu|mig|gaudi)([.-].+)?", name) is not None


def of_claims(
    resources: Mapping[str, object] | None,
    pod_claims: Sequence[Mapping[str, object]],
    templates: Mapping[str, Mapping[str, object]],
) -> int | None:
    """Return the number of GPUs that a container's `resources.claims` have; None if that is not determined.

    `pod_claims`: the `resourceClaims` of its pod; `templates`: ResourceClaimTemplate -> the `spec` of its claims.
    """
    total = 0
    for entry in _entries(resources):
        source = next((claim for claim in pod_claims if claim.get("name") == entry.get("name")), {})
        spec = templates.get(str(source.get("resourceClaimTemplateName")))
        count = None if spec is None else of_claim(spec, entry.get("request"))
        if count is None:
            return None
        total += count
    return total
