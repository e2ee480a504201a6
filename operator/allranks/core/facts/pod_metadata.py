"""Labels and annotations that keep other controllers away from training pods, unless the job's template or its pool
sets them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from allranks.core.facts.model import Manifest

SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
DO_NOT_DISRUPT = "karpenter.sh/do-not-disrupt"
ISTIO_INJECT = "sidecar.istio.io/inject"
LINKERD_INJECT = "linkerd.io/inject"

_ISTIO_CHOICES = (ISTIO_INJECT, "istio.io/rev")
"""Each decides about Istio's sidecar, as a label or as an annotation."""


def with_defaults(metadata: Mapping[str, Any]) -> Manifest:
    """Metadata of a pod template with these defaults.

    - Node autoscalers do not remove a node to save cost while a rank runs on it: all ranks would lose the work since
      the last checkpoint, also in an elastic job.
    - Service meshes inject no sidecar: it would hold up the rendezvous, carry the traffic between ranks, and an
      ordinary sidecar would keep running after the program.
    """
    labels, annotations = dict(metadata.get("labels") or {}), dict(metadata.get("annotations") or {})
    annotations.setdefault(SAFE_TO_EVICT, "false")
    annotations.setdefault(DO_NOT_DISRUPT, "true")
    # Istio prefers the label, so an annotation of the user's own must not meet a label of ours.
    if not any(key in part for key in _ISTIO_CHOICES for part in (labels, annotations)):
        labels[ISTIO_INJECT] = annotations[ISTIO_INJECT] = "false"
    annotations.setdefault(LINKERD_INJECT, "disabled")
    return {**metadata, "labels": labels, "annotations": annotations}


def evictable(annotations: Mapping[str, str]) -> dict[str, str]:
    """The annotations of a pod that does nothing, such as a placeholder: its node may be removed."""
    kept = {key: value for key, value in annotations.items() if key != DO_NOT_DISRUPT}
    return {**kept, SAFE_TO_EVICT: "true"}
