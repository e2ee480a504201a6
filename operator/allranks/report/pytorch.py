"""Measures this rank's own work in each step of a PyTorch training. Call `instrument(model)` once.

Own work is the time from the end of one optimizer step until the last local gradient is ready. The rest of the step is
waiting for the all-reduce of DistributedDataParallel or Horovod. On a GPU, CUDA events measure the time. Not for models
whose ranks wait for each other inside a pass (FSDP, tensor and pipeline parallelism, SyncBatchNorm).
"""

from __future__ import annotations

import collections
from typing import Any

import torch  # type: ignore[import-not-found]

from allranks import report
from allranks.report.meter import Meter
from allranks.report.torch_agreement import checkpoint_due as checkpoint_due
from allranks.report.torch_agreement import checkpoint_requested as checkpoint_requested
from allranks.report.warn import warn_once

MOST_PENDING = 64
"""Limit of steps with pending GPU times. If the GPU is further behind, some steps are not measured."""


def instrument(model: torch.nn.Module) -> None:
    """Measure the steps of this model, plain or inside DistributedDataParallel. Does nothing outside a job.

    Call it when the model is on its device. A step ends with `step()` of an optimizer that has its parameters, so
    gradients of several batches may be accumulated. Excluded are time inside `with waiting():` and time before an
    evaluation (a forward pass in `eval()` mode or without gradients) or a reported checkpoint."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        return
    if not hasattr(parameters[0], "register_post_accumulate_grad_hook"):
        warn_once("torch", f"busy seconds are measured from PyTorch 2.1 on, this is {torch.__version__}")
        return
    if any("fsdp" in type(module).__module__ for module in model.modules()):
        warn_once("fsdp", "busy seconds are not measured with FSDP: its ranks wait for each other within each pass")
        return
    meter = GpuSteps() if parameters[0].is_cuda else Steps()
    if not report.use_meter(meter):
        return
    from torch.optim.optimizer import register_optimizer_step_post_hook  # type: ignore[import-not-found]

    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(meter.gradient)
    ours = set(parameters)
    is_ours: dict[int, bool] = {}

    def stepped(optimizer: torch.optim.Optimizer, *ignored: object) -> None:
        if id(optimizer) not in is_ours:
            weights = (weight for group in optimizer.param_groups for weight in group["params"])
            is_ours[id(optimizer)] = any(weight in ours for weight in weights)
        if is_ours[id(optimizer)]:
            meter.step_over()

    def evaluated(module: torch.nn.Module, *ignored: object) -> None:
        if not module.training or not torch.is_grad_enabled():
            meter.restart()

    register_optimizer_step_post_hook(stepped)
    model.register_forward_hook(evaluated)
    inner = getattr(model, "module", None)
    if isinstance(inner, torch.nn.Module):  # programs often evaluate the plain model
        inner.register_forward_hook(evaluated)


watch = instrument
"""The former name of `instrument`."""


class Steps(Meter):
    """Steps on a CPU. A gradient is the last one if as many as in the previous step are ready."""

    ended_by_report = False

    def __init__(self) -> None:
        super().__init__()
        self._count = 0
        self._last = 0

    def gradient(self, parameter: torch.Tensor) -> None:
        self._count += 1
        if self._count >= self._last:
            self.work_done()

    def step_over(self, steps: int = 1) -> None:
        super().step_over(steps)
        self._count, self._last = 0, self._count or self._last


class GpuSteps(Steps):
    """Steps on a GPU. The program runs ahead of the GPU, so CUDA events record the times."""

    def __init__(self) -> None:
        super().__init__()
        self.wait: Any = GpuWait()
        self._began: Any = None
        self._done: Any = None
        self._pending: collections.deque[tuple[Any, Any, list[tuple[Any, Any]], Any]] = collections.deque()
        self._waits = 0

    def work_done(self) -> None:
        if self._began is not None:
            if self._done is None:
                self._done = new_event()
            self._done.record()  # the last call in a step counts
            self._waits = len(self.wait.spans)

    def step_over(self, steps: int = 1) -> None:
        self._add_up()
        before, done, waits = self._began, self._done, self.wait.spans[: self._waits]
        self._count, self._last = 0, self._count or self._last
        self.restart()
        if done is not None and len(self._pending) < MOST_PENDING:
            self._pending.append((before, done, waits, self._began))

    def waits(self) -> bool | None:
        """Return whether the GPU has the last gradient of a step but has not ended the step, or else whether the
        program waits.

        Return None before the first step."""
        for _, done, _, end in list(self._pending):
            if not end.query():
                return bool(done.query())
        return None if self._began is None else self.wait.depth > 0

    def restart(self) -> None:
        self._began, self._done, self._waits = new_event(), None, 0
        self._began.record()
        self.wait.spans = []

    def _add_up(self) -> None:
        """Add the steps that the GPU has finished."""
        while self._pending and self._pending[0][3].query():
            began, done, waits, _ = self._pending.popleft()
            busy = began.elapsed_time(done) - sum(since.elapsed_time(until) for since, until in waits)
            total, count = self.totals
            self.totals = (total + max(busy, 0.0) / 1000, count + 1)


class GpuWait:
    """As `meter.Wait`, with CUDA events."""

    def __init__(self) -> None:
        self.spans: list[tuple[Any, Any]] = []
        self.depth = 0
        self._since: Any = None

    def __enter__(self) -> None:
        if self.depth == 0:
            self._since = new_event()
            self._since.record()
        self.depth += 1

    def __exit__(self, *ignored: object) -> None:
        self.depth -= 1
        if self.depth == 0:
            until = new_event()
            until.record()
            self.spans.append((self._since, until))


def new_event() -> Any:
    return torch.cuda.Event(enable_timing=True)
