"""Ways to spread one model over ranks. All of them compute the same training step: the same global batch, the same
gradients, the same weights after it, up to rounding."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from common.models_lm import LanguageModel

KINDS = ("ddp", "fsdp", "tensor", "2d", "pipeline")


class Parallel:
    """A model on all ranks. `module` has the parameters of this rank, under their names in the whole model."""

    data_rank: int
    """The part of the global batch that this rank computes, of `data_size` parts."""
    data_size: int

    def __init__(self, module: LanguageModel) -> None:
        self.module = module
        self.model: nn.Module = module
        """What is called with a batch: `module`, or a wrapper of it."""

    @property
    def sharers(self) -> int:
        """The number of ranks that compute one part of the batch together."""
        return dist.get_world_size() // self.data_size

    def backward(self, x: torch.Tensor, y: torch.Tensor, total: int) -> torch.Tensor:
        """Forward and backward pass of this rank's part of a batch with `total` targets. Returns the summed loss."""
        loss = summed_loss(self.model(x), y)
        # The gradients are averaged over the parts of the batch, which may have different sizes.
        (loss * self.data_size / total).backward()
        return loss.detach()

    @torch.no_grad()
    def evaluate(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """(summed loss, correct answers) of this rank's part of a batch."""
        return scores(self.model(x), y)

    def clip_gradients(self, limit: float) -> torch.Tensor:
        """Scale all gradients if their norm over the whole model is above `limit`. Returns the norm."""
        norm = self._whole_norm(torch.nn.utils.get_total_norm([p.grad for p in self._trained()]))
        torch.nn.utils.clip_grads_with_norm_(self._trained(), limit, norm)
        return norm

    def whole_weights(self) -> dict[str, torch.Tensor]:
        """All weights on rank 0, on its CPU; empty on the other ranks. For a model that fits into one process."""
        weights = {}
        for name, weight in self.module.state_dict().items():
            whole = weight.full_tensor() if isinstance(weight, DTensor) else weight  # all ranks take part
            if dist.get_rank() == 0:
                weights[name] = whole.cpu()
        return weights

    def _trained(self) -> list[nn.Parameter]:
        return [parameter for parameter in self.module.parameters() if parameter.grad is not None]

    def _whole_norm(self, norm: torch.Tensor) -> torch.Tensor:
        return norm.full_tensor() if isinstance(norm, DTensor) else norm


class DataParallel(Parallel):
    """DistributedDataParallel: each rank has the whole model, and gradients are averaged in the backward pass."""

    def __init__(self, module: LanguageModel) -> None:
        super().__init__(module)
        self.data_rank, self.data_size = dist.get_rank(), dist.get_world_size()
        self.model = DistributedDataParallel(module)


class FullyShardedDataParallel(Parallel):
    """FSDP2: each rank has a share of every weight, gradient and optimizer state. A block's weights are gathered when
    it is needed. A model that does not fit into one process would be built on the `meta` device first."""

    def __init__(self, module: LanguageModel, mesh: DeviceMesh) -> None:
        super().__init__(module)
        self.data_rank, self.data_size = mesh.get_local_rank(), mesh.size()
        for block in module.blocks.values():
            fully_shard(block, mesh=mesh)
        fully_shard(module, mesh=mesh)


class TensorParallel(Parallel):
    """Each weight matrix is split over all ranks, which compute every sample together; between the matrices, the
    sequence is split."""

    def __init__(self, module: LanguageModel, mesh: DeviceMesh) -> None:
        super().__init__(module)
        self.data_rank, self.data_size = 0, 1
        split_matrices(module, mesh)


class TwoDimensional(FullyShardedDataParallel):
    """A mesh of data x tensor: FSDP2 over the first dimension, tensor parallelism over the second."""

    def __init__(self, module: LanguageModel, mesh: DeviceMesh) -> None:
        # Advice for speed in each step: that reductions over both dimensions are two operations, and that the output
        # must not be changed in place.
        logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
        warnings.filterwarnings("ignore", message=".*returned a view tensor", category=UserWarning)
        split_matrices(module, mesh["tensor"])
        super().__init__(module, mesh["data"])

    def _whole_norm(self, norm: torch.Tensor) -> torch.Tensor:
        whole = super()._whole_norm(norm)
        dist.broadcast(whole, src=0)  # the order of the two reductions, and so the last bit, may differ between ranks
        return whole


class Pipeline(Parallel):
    """Each rank has some consecutive blocks. A batch is cut into microbatches, which pass through the ranks one after
    another, and back with their gradients (1F1B)."""

    def __init__(self, module: LanguageModel, device: torch.device, batch: int) -> None:
        super().__init__(module)
        self.data_rank, self.data_size = 0, 1
        self._device, self._total = device, 1
        rank, size = dist.get_rank(), dist.get_world_size()
        layers = len(module.blocks)
        self._last = rank == size - 1
        module.keep(range(rank * layers // size, (rank + 1) * layers // size), first=rank == 0, last=self._last)
        # As many as possible keep all ranks busy, but each microbatch needs the same number of samples.
        microbatches = max(count for count in range(1, 2 * size + 1) if batch % count == 0)
        stage = PipelineStage(module, rank, size, device)
        self._schedule = Schedule1F1B(stage, microbatches, loss_fn=self._loss, scale_grads=False)

    def _loss(self, logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return summed_loss(logits, y) / self._total

    def backward(self, x: torch.Tensor, y: torch.Tensor, total: int) -> torch.Tensor:
        self._total = total
        losses: list[torch.Tensor] = []
        self._pass(self._schedule.step, x, y, losses)
        return self._from_last(torch.stack(losses).sum() * total if self._last else torch.zeros(()))

    @torch.no_grad()
    def evaluate(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        logits = self._pass(self._schedule.eval, x, y, [])
        return self._from_last(scores(logits, y) if self._last else torch.zeros(2))

    def _pass(
        self, run: Callable[..., torch.Tensor], x: torch.Tensor, y: torch.Tensor, losses: list[torch.Tensor]
    ) -> torch.Tensor:
        inputs = (x,) if dist.get_rank() == 0 else ()
        return run(*inputs, target=y, losses=losses) if self._last else run(*inputs)

    def _from_last(self, value: torch.Tensor) -> torch.Tensor:
        value = value.detach().to(self._device, torch.float32)
        dist.broadcast(value, src=dist.get_world_size() - 1)
        return value

    def whole_weights(self) -> dict[str, torch.Tensor]:
        own = {name: weight.cpu() for name, weight in self.module.state_dict().items()}
        stages: list[dict[str, torch.Tensor]] | None = [{}] * dist.get_world_size() if dist.get_rank() == 0 else None
        dist.gather_object(own, stages)
        return {name: weight for stage in stages or () for name, weight in stage.items()}

    def _whole_norm(self, norm: torch.Tensor) -> torch.Tensor:
        squared = norm**2
        dist.all_reduce(squared)
        return squared.sqrt()


def spread(kind: str, module: LanguageModel, device: torch.device, batch: int, tensor_size: int) -> Parallel:
    """The model on all ranks, by one of KINDS. All ranks must pass the same weights.

    Raises SystemExit if the sizes do not fit this number of ranks."""
    size = dist.get_world_size()
    block = next(iter(module.blocks.values()))
    heads = block.attention.query.out_features // block.attention.head_width
    tensor_size = {"tensor": size, "2d": tensor_size}.get(kind, 1)
    data_size = {"ddp": size, "fsdp": size, "2d": size // tensor_size}.get(kind, 1)
    if kind == "2d" and size % tensor_size:
        raise SystemExit(f"--parallel 2d: {size} ranks are not divisible by --tensor-size {tensor_size}")
    if heads % tensor_size:
        raise SystemExit(
            f"--parallel {kind}: --heads {heads} is not divisible by the {tensor_size} ranks that share a layer"
        )
    if kind == "pipeline" and len(module.blocks) < size:
        raise SystemExit(f"--parallel pipeline: --layers {len(module.blocks)} are fewer than the {size} ranks")
    if batch < data_size:
        raise SystemExit(f"--parallel {kind}: --batch-size {batch} is less than the {data_size} ranks that share it")
    if kind == "ddp":
        return DataParallel(module)
    if kind == "fsdp":
        return FullyShardedDataParallel(module, init_device_mesh(device.type, (size,), mesh_dim_names=("data",)))
    if kind == "tensor":
        return TensorParallel(module, init_device_mesh(device.type, (size,), mesh_dim_names=("tensor",)))
    if kind == "2d":
        shape = size // tensor_size, tensor_size
        return TwoDimensional(module, init_device_mesh(device.type, shape, mesh_dim_names=("data", "tensor")))
    return Pipeline(module, device, batch)


def split_matrices(module: LanguageModel, mesh: DeviceMesh) -> None:
    """Tensor parallelism with sequence parallelism (arXiv:2205.05198) between the matrices."""
    whole, sequence = Replicate(), Shard(1)
    for block in module.blocks.values():
        plan = {
            "attention_norm": SequenceParallel(),
            "attention": PrepareModuleInput(input_layouts=sequence, desired_input_layouts=whole),
            "attention.query": ColwiseParallel(),
            "attention.key": ColwiseParallel(),
            "attention.value": ColwiseParallel(),
            "attention.out": RowwiseParallel(output_layouts=sequence),
            "feed_forward_norm": SequenceParallel(),
            "feed_forward": PrepareModuleInput(input_layouts=sequence, desired_input_layouts=whole),
            "feed_forward.up": ColwiseParallel(),
            "feed_forward.down": RowwiseParallel(output_layouts=sequence),
        }
        parallelize_module(block, mesh, plan)
    plan = {
        "embedding": RowwiseParallel(input_layouts=whole, output_layouts=sequence),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=sequence, output_layouts=whole),
    }
    parallelize_module(module, mesh, plan)


def summed_loss(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The summed cross entropy of (batch, length, classes) logits."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum")


def scores(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """(summed loss, correct answers)."""
    return torch.stack([summed_loss(logits, y), (logits.argmax(-1) == y).sum()])
