"""Fine-tuning with LoRA: TRL's SFTTrainer trains PEFT's adapters of a causal language model, by default of a tiny one
with random weights, which needs no download."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from datasets import Dataset
from peft import LoraConfig
from torch.distributed.elastic.multiprocessing.errors import record
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.trainer_callback import PrinterCallback
from trl import SFTConfig, SFTTrainer

from common.ddp import join_group, leave
from common.journal import say
from common.options import make_parser, parse_options, positive_int
from common.runs import claim_run
from common.transformers import Watch, byte_tokenizer, tiny_llama

EXAMPLE = """torchrun --standalone --nproc-per-node 2 lora_trl.py --checkpoint-dir /tmp/lora
torchrun --standalone --nproc-per-node 8 lora_trl.py --model /models/llama-8b --data answers.jsonl
(on one machine without allranks; the command of a manifest is [torchrun, train/lora_trl.py])"""


@record  # writes an exception to torchrun's error file: torchrun's own exit code does not show the cause
def main() -> None:
    parser = make_parser(__doc__, EXAMPLE, epochs=3, batch_size=8, lr=0.01)
    add = parser.add_argument
    add("--model", type=Path, metavar="FOLDER", help="a model in the format of transformers (default: a tiny one)")
    add("--data", type=Path, metavar="FILE", help="JSON lines with `prompt` and `completion` (default: sums)")
    add("--samples", type=positive_int, default=600, help="of the sums (default %(default)s)")
    add("--rank", type=positive_int, default=8, help="of the adapters' matrices (default %(default)s)")
    options = parse_options(parser)
    device = join_group(options.threads)
    rank, size = dist.get_rank(), dist.get_world_size()
    say(f"rank {rank} of {size}: started on {device} ({dist.get_backend()})")
    directory = options.checkpoint_dir
    folder, saved = claim_run(directory, "checkpoint-*/trainer_state.json", device) if directory else (Path(), None)

    if options.model:
        tokenizer = AutoTokenizer.from_pretrained(options.model)
        model = AutoModelForCausalLM.from_pretrained(options.model)
    else:
        tokenizer = byte_tokenizer()
        model = tiny_llama(tokenizer, options.seed)
    data = Dataset.from_json(str(options.data)) if options.data else Dataset.from_list(sums(options.samples))
    watch = Watch(device, options.batch_size)
    trainer = SFTTrainer(
        model=model,
        processing_class=tokenizer,
        train_dataset=data,
        peft_config=LoraConfig(r=options.rank, lora_alpha=2 * options.rank, target_modules="all-linear"),
        args=SFTConfig(
            output_dir=str(folder),
            num_train_epochs=options.epochs,
            per_device_train_batch_size=options.batch_size,
            learning_rate=options.lr,
            max_length=128,
            logging_steps=5,
            save_strategy="epoch" if directory else "no",
            save_total_limit=2,
            seed=options.seed,
            use_cpu=device.type == "cpu",
            bf16=device.type == "cuda" and torch.cuda.is_bf16_supported(),
            gradient_checkpointing=False,
            dataloader_pin_memory=device.type == "cuda",
            report_to="none",
            disable_tqdm=True,
        ),
        callbacks=[watch],
    )
    trainer.remove_callback(PrinterCallback)  # the watch prints the same
    trained, every = trainer.model.get_nb_trainable_parameters()
    if rank == 0:
        say(f"training {trained} of {every} parameters")
    result = trainer.train(resume_from_checkpoint=str(saved.parent) if saved else None)
    watch.exit_if_stopped(trainer.state.global_step)
    if directory and trainer.is_world_process_zero():
        trainer.model.save_pretrained(folder / "adapter")
        say(f"adapter saved in {folder / 'adapter'}")
    say(f"rank {rank} of {size}: training loss {result.training_loss:.4f}")
    leave()


def sums(count: int) -> list[dict[str, str]]:
    """Questions that a model without knowledge can learn the form of."""
    pairs = [(number % 30, number % 41) for number in range(count)]
    return [{"prompt": f"What is {a} + {b}? ", "completion": f"It is {a + b}."} for a, b in pairs]


if __name__ == "__main__":
    main()
