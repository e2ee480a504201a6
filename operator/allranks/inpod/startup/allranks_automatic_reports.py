"""Adds a callback that reports progress to programs of Hugging Face, Keras, Lightning and Ray Train, when they import
these, and asks NCCL in programs of PyTorch and JAX.

Hugging Face and Keras have no registry of callbacks, so the list of default callbacks is extended. Lightning calls
`lightning` and `pytorch_lightning` by itself: `pod_bundle.py` writes the entry points beside this file. Ray Train has a
registry, the variable RAY_TRAIN_CALLBACKS, but its driver pickles the callbacks, so ranks to which a `runtime_env`
gives another PYTHONPATH or another image would fail. Instead, each rank adds the callback to those that it receives.
"""

from __future__ import annotations

import os
import sys

import allranks_import_hooks as hooks  # type: ignore[import-not-found]  # in the same directory

TYPE_CHECKING = False  # see allranks_import_hooks
if TYPE_CHECKING:
    from typing import Any

_installed = False
_RAY_RANKS = "ray.train.v2._internal.execution.worker_group.worker"


def install() -> None:
    global _installed
    _installed = True
    hooks.after_import("transformers.trainer", _extend_transformers)
    hooks.after_import("keras.src.callbacks.callback_list", _extend_keras)  # Keras 3
    hooks.after_import("keras.src.callbacks", _extend_keras)  # Keras 2, before 3 a single file
    hooks.after_import("tf_keras.src.callbacks", _extend_keras)
    hooks.after_import("lightning.fabric.fabric", _note_group_of_fabric)
    hooks.after_import(_RAY_RANKS, _extend_ray)
    hooks.after_import("ray.train", _check_ray)
    if os.environ.get("MLFLOW_RUN_ID"):
        hooks.after_import("mlflow.tracking.fluent", _share_mlflow_run)
    if os.environ.get("WANDB_RUN_ID"):
        hooks.after_import("wandb", _share_wandb_run)
    for name in ("torch.utils.tensorboard.writer", "tensorboardX.writer"):
        hooks.after_import(name, _skip_repeated_steps)
    if os.environ.get("ALLRANKS_HANG_SECONDS"):
        for name in ("torch.distributed", "jax"):
            hooks.after_import(name, _watch_nccl)


def lightning_callbacks() -> list[Any]:
    """Return the callbacks for Lightning. This is its entry point; it does not catch errors."""
    if not _installed:
        return []
    try:
        from allranks.report.lightning import AutomaticCallback

        return [AutomaticCallback()]
    except Exception as error:
        hooks.write_line(f"Lightning is used without reports: {type(error).__name__}: {error}")
        return []


def _extend_transformers(trainer: Any) -> None:
    from allranks.report.transformers import AutomaticCallback

    trainer.DEFAULT_CALLBACKS.append(AutomaticCallback)


def _note_group_of_fabric(fabric: Any) -> None:
    original = fabric.Fabric.__init__
    from functools import wraps

    from allranks.report.group import note_group

    @wraps(original)
    def initialize(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        note_group(self.world_size, self.global_rank)

    fabric.Fabric.__init__ = initialize


def _extend_ray(worker: Any) -> None:
    """Add the callback to ranks of Ray Train. Its driver and controller import this class, but do not call the
    method."""
    kind = worker.RayTrainWorker
    original = kind.init_train_context
    from functools import wraps

    @wraps(original)
    def initialize(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            from allranks.report.ray import with_reports

            kwargs["worker_callbacks"] = with_reports(kwargs["worker_callbacks"])
        except Exception as error:
            hooks.write_line(f"Ray Train is used without reports: {type(error).__name__}: {error}")
        return original(self, *args, **kwargs)

    kind.init_train_context = initialize


def _share_mlflow_run(fluent: Any) -> None:
    from allranks.report import mlflow

    if mlflow.is_requested():
        mlflow.share_run(fluent)


def _share_wandb_run(wandb: Any) -> None:
    """If the ID of the run is the UID of the job, keep it for rank 0. The other ranks have runs of the same group."""
    from allranks.report.state import RANK, number_in

    environment, uid = os.environ, os.environ.get("ALLRANKS_JOB_UID")
    if not uid or environment["WANDB_RUN_ID"] != uid:
        return
    if rank := number_in(RANK):
        environment["WANDB_RUN_ID"] = f"{uid}-{rank}"
    environment.setdefault("WANDB_RESUME", "allow")
    environment.setdefault("WANDB_RUN_GROUP", environment.get("ALLRANKS_JOB", uid))


def _skip_repeated_steps(writer: Any) -> None:
    from allranks.report.tensorboard import skip_repeated_steps

    skip_repeated_steps(writer)


def _check_ray(train: Any) -> None:
    """Say in the program, and not in the processes that Ray starts, that nothing can be added to its ranks. Looks for
    the file, because importing the module would import all of Ray Train."""
    if "RAY_RAYLET_PID" in os.environ:
        return
    from pathlib import Path

    if not hasattr(train, "UserCallback"):
        hooks.write_line("ranks of Ray Train V1 report nothing by themselves, those of V2 do (RAY_TRAIN_V2_ENABLED=1)")
    elif not Path(train.__path__[0], *_RAY_RANKS.split(".")[2:]).with_suffix(".py").exists():
        reason = f"this version of Ray Train is not supported (it has no {_RAY_RANKS})"
        hooks.write_line(f"{reason}: its ranks report nothing by themselves")


def _watch_nccl(module: Any) -> None:
    from allranks.report.nccl import start_watch

    start_watch()


def _extend_keras(callbacks: Any) -> None:
    """Add the callback to lists that `fit` makes, with a History; other lists have no steps."""
    kind = callbacks.CallbackList
    original = kind.__init__
    if getattr(kind, "reports_to_allranks", False):
        return  # both modules of Keras 3 have this class
    from functools import wraps

    from allranks.report.keras_fit import automatic_callback

    ours = automatic_callback(sys.modules[kind.__module__].Callback)

    @wraps(original)
    def initialize(self: Any, callbacks: Any = None, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("add_history") or args[:1] == (True,):
            callback_list = (
                list(callbacks) if isinstance(callbacks, (list, tuple)) else [callbacks] if callbacks else []
            )
            callbacks = [*callback_list, ours()]
        original(self, callbacks, *args, **kwargs)

    kind.__init__, kind.reports_to_allranks = initialize, True
