"""What the programs with Hugging Face's libraries share: a tiny model and tokenizer without a download, and a callback
that reports and that stops all ranks together."""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback

from common.ddp import any_rank_terminated
from common.journal import say
from common.report import checkpoint_requested_of_all, finish, report
from common.termination import EXIT_CODE, Termination


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token for each byte, and one for the end."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>")


def tiny_llama(tokenizer: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    """Random weights, the same on all ranks."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=512,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)


class Watch(TrainerCallback):
    """Reports steps, the loss and checkpoints. After SIGTERM to any rank all ranks save and stop after the same step.
    They also save when allranks requests a checkpoint."""

    def __init__(self, device: torch.device, samples: int) -> None:
        """`samples`: of this rank in a step."""
        self._device, self._samples = device, samples
        self._termination = Termination(lambda: say("SIGTERM: the other ranks did not stop with this one"))
        self.stopped = False

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        report(step=state.global_step, total_steps=state.max_steps, epoch=int(state.epoch), samples=self._samples)
        if any_rank_terminated(self._termination, self._device):
            self._termination.agreed()
            self.stopped = control.should_save = control.should_training_stop = True
        elif args.save_strategy != "no" and checkpoint_requested_of_all():
            control.should_save = True

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **more: Any) -> None:
        if logs and "loss" in logs:
            report(loss=float(logs["loss"]))
        if logs and dist.get_rank() == 0:
            values = " ".join(f"{name} {float(value):.4f}" for name, value in logs.items())
            say(f"step {state.global_step}/{state.max_steps} {values}")

    def on_save(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        report(step=state.global_step, checkpoint=args.should_save)  # rank 0 writes it, the others do not wait for it

    def exit_if_stopped(self, step: int) -> None:
        """Call after the training."""
        if self.stopped:
            say(f"rank {dist.get_rank()} of {dist.get_world_size()}: SIGTERM: stopped after step {step}, saved")
            dist.barrier()
            finish()
            sys.exit(EXIT_CODE)
