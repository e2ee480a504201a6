"""A tiny Llama over bytes with Hugging Face's Trainer, built from its configuration: nothing is downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from common.ddp import join_group, leave
from common.journal import say
from common.options import make_parser, parse_options, positive_int
from common.runs import claim_run
from common.text import load_text, test_starts, windows
from common.transformers import Watch, byte_tokenizer, tiny_llama

EXAMPLE = """torchrun --standalone --nproc-per-node 2 lm_transformers.py --checkpoint-dir /tmp/lm
(on one machine without allranks; the command of a manifest is [torchrun, train/lm_transformers.py])"""


class Windows(Dataset[dict[str, torch.Tensor]]):
    """Consecutive parts of a text. The model itself shifts the labels by one."""

    def __init__(self, text: Any, count: int, length: int) -> None:
        self._samples, _ = windows(text, test_starts(text, count, length), length)

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        sample = torch.from_numpy(self._samples[index])
        return {"input_ids": sample, "labels": sample}


@record  # writes an exception to torchrun's error file: torchrun's own exit code does not show the cause
def main() -> None:
    parser = make_parser(__doc__, EXAMPLE, epochs=4, batch_size=8, lr=0.003)
    parser.add_argument("--samples", type=positive_int, default=400, help="in an epoch (default %(default)s)")
    parser.add_argument("--context", type=positive_int, default=64, help="bytes in a sample (default %(default)s)")
    options = parse_options(parser)
    device = join_group(options.threads)
    rank, size = dist.get_rank(), dist.get_world_size()
    say(f"rank {rank} of {size}: started on {device} ({dist.get_backend()})")
    directory = options.checkpoint_dir
    folder, saved = claim_run(directory, "checkpoint-*/trainer_state.json", device) if directory else (Path(), None)

    train_text, test_text = load_text([])
    watch = Watch(device, options.batch_size)
    trainer = Trainer(
        model=tiny_llama(byte_tokenizer(), options.seed),
        args=TrainingArguments(
            output_dir=str(folder),
            num_train_epochs=options.epochs,
            per_device_train_batch_size=options.batch_size,
            learning_rate=options.lr,
            lr_scheduler_type="cosine",
            warmup_steps=10,
            max_grad_norm=1.0,
            logging_steps=5,
            eval_strategy="epoch",
            save_strategy="epoch" if directory else "no",
            save_total_limit=2,
            seed=options.seed,
            use_cpu=device.type == "cpu",
            dataloader_pin_memory=device.type == "cuda",
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=Windows(train_text, options.samples, options.context),
        eval_dataset=Windows(test_text, 64, options.context),
        callbacks=[watch],
    )
    trainer.remove_callback(PrinterCallback)  # the watch prints the same
    trainer.train(resume_from_checkpoint=str(saved.parent) if saved else None)
    watch.exit_if_stopped(trainer.state.global_step)
    loss = trainer.evaluate()["eval_loss"]
    say(f"rank {rank} of {size}: test loss {loss:.4f}")
    leave()


if __name__ == "__main__":
    main()
