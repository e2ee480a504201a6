"""The command line options of all training programs."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

CHECKPOINT_VARIABLE = "ALLRANKS_CHECKPOINT_DIR"


def make_parser(
    description: str, example: str, *, epochs: int, batch_size: int, lr: float, batch_of: str = "each rank"
) -> argparse.ArgumentParser:
    """A parser with the shared options. A program adds its own options, then calls `parse_options`."""
    parser = argparse.ArgumentParser(
        description=description,
        epilog="example:\n  " + example.replace("\n", "\n  "),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--epochs", type=positive_int, default=epochs, help="passes over the training data (default %(default)s)")
    add(
        "--batch-size",
        type=positive_int,
        default=batch_size,
        help=f"samples per step of {batch_of} (default %(default)s)",
    )
    add("--lr", type=float, default=lr, help="learning rate of Adam (default %(default)s)")
    add("--seed", type=int, default=0, help="seed of weights and order, not of the held-out rows (default %(default)s)")
    add(
        "--checkpoint-dir",
        type=Path,
        default=os.environ.get(CHECKPOINT_VARIABLE) or None,
        help=f"where rank 0 saves and finds checkpoints (default ${CHECKPOINT_VARIABLE}, else none is saved)",
    )
    add("--checkpoint-every", type=positive_int, default=1, metavar="EPOCHS", help="default: every epoch")
    add(
        "--output-dir",
        type=Path,
        help="where rank 0 writes metrics.jsonl and loss.png (default: the checkpoint directory, else not written)",
    )
    add(
        "--pause",
        type=seconds,
        default=0.0,
        metavar="SECONDS",
        help="sleep after each epoch: time to kill a rank and watch the recovery (default %(default)s)",
    )
    add("--work", type=seconds, default=0.0, metavar="SECONDS", help="sleep in each step, to simulate a larger model")
    add("--slow-rank", type=int, metavar="RANK", help="a rank with a longer --work, to test straggler detection")
    add("--slow-factor", type=float, default=3.0, metavar="TIMES", help="factor for its --work (default %(default)s)")
    add("--hang-rank", type=int, metavar="RANK", help="a rank that sleeps forever, to test hang detection")
    add("--hang-at-step", type=positive_int, default=20, metavar="STEP", help="in this step (default %(default)s)")
    add("--hang-attempt", type=int, default=0, metavar="N", help="only in this $ALLRANKS_ATTEMPT (default 0)")
    add(
        "--threads",
        type=positive_int,
        default=1,
        help="threads of each rank on a CPU; more threads than cores slow all ranks down (default %(default)s)",
    )
    return parser


def parse_options(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The options; the output directory defaults to the checkpoint directory."""
    options = parser.parse_args()
    if options.output_dir is None:
        options.output_dir = options.checkpoint_dir
    return options


def positive_int(text: str) -> int:
    """An argparse type: 1, 2, 3, ..."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return value


def seconds(text: str) -> float:
    """An argparse type: 0 or more."""
    value = float(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative")
    return value
