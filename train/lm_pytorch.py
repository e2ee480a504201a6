"""A small language model over bytes with PyTorch. `--parallel` chooses how it is spread over the ranks: DDP, FSDP2,
tensor parallelism, a mesh of both, or a pipeline. Its checkpoints resume with any number of ranks and any `--parallel`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

from common.ddp import any_rank_terminated, join_group, leave
from common.distributed_checkpoints import DistributedCheckpoints
from common.journal import Journal, Progress, say
from common.models_lm import LanguageModel, continue_text
from common.options import make_parser, parse_options, positive_int
from common.parallel import KINDS, Parallel, spread
from common.report import checkpoint_requested_of_all, instrument, report, waiting
from common.schedules import warmup_cosine
from common.termination import Termination
from common.text import batch_starts, load_text, test_starts, windows

EXAMPLE = """torchrun --standalone --nproc-per-node 2 lm_pytorch.py --parallel fsdp --checkpoint-dir /tmp/lm
torchrun --standalone --nproc-per-node 4 lm_pytorch.py --parallel 2d --text *.txt --width 512 --layers 8
(on one machine without allranks; the command of a manifest is [torchrun, train/lm_pytorch.py])"""


def parse() -> argparse.Namespace:
    """The options."""
    parser = make_parser(__doc__, EXAMPLE, epochs=10, batch_size=16, lr=0.003, batch_of="all ranks together")
    add = parser.add_argument
    add("--parallel", choices=KINDS, default="fsdp", help="how the model is spread over ranks (default %(default)s)")
    add("--tensor-size", type=positive_int, default=2, metavar="RANKS", help="for 2d: ranks that share each layer")
    add("--text", type=Path, nargs="+", default=[], metavar="FILE", help="default: the reference of Python's language")
    add("--steps-per-epoch", type=positive_int, default=40, help="then test and save (default %(default)s)")
    add("--context", type=positive_int, default=128, help="bytes in a sample (default %(default)s)")
    add("--width", type=positive_int, default=128, help="of the model (default %(default)s)")
    add("--layers", type=positive_int, default=4, help="of the model (default %(default)s)")
    add("--heads", type=positive_int, default=4, help="of each layer's attention (default %(default)s)")
    add("--warmup", type=positive_int, default=40, metavar="STEPS", help="until the full --lr (default %(default)s)")
    add("--clip", type=float, default=1.0, help="largest norm of the gradients (default %(default)s)")
    add("--sample", type=int, default=200, metavar="BYTES", help="text to generate at the end (default %(default)s)")
    options = parse_options(parser)
    if options.width % (2 * options.heads):
        parser.error(f"--width {options.width} is not divisible by 2 x --heads {options.heads}")
    return options


@record  # writes an exception to torchrun's error file: torchrun's own exit code does not show the cause
def main() -> None:
    options = parse()
    device = join_group(options.threads)
    rank, size = dist.get_rank(), dist.get_world_size()
    journal = Journal(options, rank, size, None, f"{device} ({dist.get_backend()}), {options.parallel}")
    termination = Termination(journal.save_alone)

    train_text, test_text = load_text(options.text)
    torch.manual_seed(options.seed)
    net = LanguageModel(options.width, options.layers, options.heads).to(device)
    parallel = spread(options.parallel, net, device, options.batch_size, options.tensor_size)
    optimizer = torch.optim.AdamW(parallel.module.parameters(), lr=options.lr, betas=(0.9, 0.95))
    if options.parallel == "ddp":
        instrument(parallel.model)  # the others wait for each other within a pass: busy time cannot be measured
    checkpoints = None
    progress = Progress()
    if options.checkpoint_dir is not None:
        checkpoints = DistributedCheckpoints(options.checkpoint_dir, journal.claim, device, say)
        progress = checkpoints.load(parallel.module, optimizer)
    journal.begin(progress)

    def save() -> None:
        if checkpoints:
            with journal.until_replaced():
                checkpoints.save(parallel.module, optimizer, progress)

    total_steps = options.epochs * options.steps_per_epoch
    while progress.epoch < options.epochs:
        started = time.monotonic()
        # An interrupted epoch continues where it stopped.
        left = (progress.epoch + 1) * options.steps_per_epoch - progress.step
        journal.begin_epoch(progress, options.steps_per_epoch, left)
        losses = torch.zeros(2, device=device)  # summed loss and targets of this rank
        for _ in range(left):
            if any_rank_terminated(termination, device):
                stop(termination, journal, progress, save)
            journal.begin_step(progress)
            for group in optimizer.param_groups:
                group["lr"] = warmup_cosine(options.lr, progress.step, total_steps, options.warmup)
            starts = batch_starts(train_text, options.batch_size, options.context, options.seed, progress.step)
            loss, targets = train_step(parallel, optimizer, train_text, starts, options, device)
            losses += torch.stack([loss, torch.tensor(float(targets), device=device)])
            progress.step += 1
            # Ranks that compute the same samples report a share of them each.
            journal.end_step(progress, targets // parallel.sharers, loss / targets)
            if checkpoints and checkpoint_requested_of_all():
                save()
                report(step=progress.step, checkpoint=True)
                if rank == 0:
                    say(f"saved on request after epoch {progress.epoch}, step {progress.step}")
        with waiting():
            dist.all_reduce(losses)
        seconds = time.monotonic() - started

        validation_loss, accuracy = evaluate(parallel, test_text, options, device)
        progress.epoch += 1
        progress.losses.append((losses[0] / losses[1]).item())
        progress.validation_losses.append(validation_loss)
        due = progress.epoch % options.checkpoint_every == 0 or progress.epoch == options.epochs
        if due:
            save()
        tokens = left * options.batch_size * options.context
        report(tokens_per_second=tokens / seconds)
        if rank == 0:
            say(f"{tokens / seconds:.0f} tokens/s")
        journal.end_epoch(progress, accuracy, seconds, tokens, saved=due and checkpoints is not None)
        termination.pause(options.pause)

    _, accuracy = evaluate(parallel, test_text, options, device)
    journal.finish(progress, accuracy, f"Language model, PyTorch {options.parallel}")
    print_sample(parallel.whole_weights(), options)
    leave()


def train_step(
    parallel: Parallel,
    optimizer: torch.optim.Optimizer,
    text: np.ndarray,
    starts: np.ndarray,
    options: argparse.Namespace,
    device: torch.device,
) -> tuple[torch.Tensor, int]:
    """One step on the windows that begin at `starts`. Returns summed loss and number of targets of this rank."""
    x, y = share_of(parallel, text, starts, options.context, device)
    optimizer.zero_grad()
    loss = parallel.backward(x, y, total=len(starts) * options.context)
    parallel.clip_gradients(options.clip)
    optimizer.step()
    return loss, y.numel()


def share_of(
    parallel: Parallel, text: np.ndarray, starts: np.ndarray, context: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of this rank."""
    x, y = windows(text, starts[parallel.data_rank :: parallel.data_size], context)
    return torch.from_numpy(x).to(device), torch.from_numpy(y).to(device)


def evaluate(
    parallel: Parallel, text: np.ndarray, options: argparse.Namespace, device: torch.device
) -> tuple[float, float]:
    """Mean loss and accuracy of the next byte on held-out text, identical on all ranks."""
    starts = test_starts(text, 4 * options.batch_size, options.context)
    totals = torch.zeros(2, device=device)
    for batch in starts.reshape(4, -1):
        totals += parallel.evaluate(*share_of(parallel, text, batch, options.context, device))
    dist.all_reduce(totals)
    dist.broadcast(totals, src=0)  # the order of the sum, and so its last bit, may differ between ranks
    loss, correct = (totals / parallel.sharers / (starts.size * options.context)).tolist()
    return loss, correct


def stop(termination: Termination, journal: Journal, progress: Progress, save: Callable[[], None]) -> NoReturn:
    """Ends all ranks after all of them have saved."""
    termination.agreed()
    save()
    journal.stop(progress)
    dist.barrier()
    dist.destroy_process_group()
    termination.exit()


def print_sample(weights: dict[str, torch.Tensor], options: argparse.Namespace) -> None:
    """Rank 0, which has the weights, prints a text that the model continues."""
    if weights and options.sample > 0:
        net = LanguageModel(options.width, options.layers, options.heads)
        net.load_state_dict(weights)
        text = continue_text(net, b"The ", options.sample, options.context, options.seed)
        say("sample: " + text.decode(errors="replace"))


if __name__ == "__main__":
    main()
