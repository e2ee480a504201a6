"""A small decoder-only transformer over bytes. Its layers have the names and shapes that the plans for tensor and
pipeline parallelism in `parallel.py` refer to."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import nn

from common.text import VOCABULARY


class Attention(nn.Module):
    """Causal self-attention with rotary positions (arXiv:2104.09864)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.head_width = width // heads
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, length, width) to the same."""
        batch, length, _ = x.shape
        # -1: with tensor parallelism each rank has only a part of the heads.
        heads = [
            layer(x).view(batch, length, -1, self.head_width).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        ]
        query, key, value = rotate(heads[0]), rotate(heads[1]), heads[2]
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, -1))


def rotate(x: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding of (batch, heads, length, head_width)."""
    length, half = x.shape[-2], x.shape[-1] // 2
    frequencies = 10_000.0 ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angles = torch.arange(length, device=x.device, dtype=torch.float32)[:, None] * frequencies
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)


class FeedForward(nn.Module):
    """Two layers with a GELU between them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(nn.functional.gelu(self.up(x)))


class Block(nn.Module):
    """One layer of the transformer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention_norm, self.attention = nn.RMSNorm(width), Attention(width, heads)
        self.feed_forward_norm, self.feed_forward = nn.RMSNorm(width), FeedForward(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.feed_forward_norm(x))


class LanguageModel(nn.Module):
    """Maps (batch, length) bytes to (batch, length, 256) logits of the next byte."""

    def __init__(self, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.embedding: nn.Module | None = nn.Embedding(VOCABULARY, width)
        # By name and not by position: a stage of a pipeline keeps the names of its layers.
        self.blocks = nn.ModuleDict({str(number): Block(width, heads) for number in range(layers)})
        self.norm: nn.Module | None = nn.RMSNorm(width)
        self.head: nn.Module | None = nn.Linear(width, VOCABULARY, bias=False)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                # Layers that add to the residual stream start smaller, as in GPT-2.
                scale = (2 * layers) ** -0.5 if name.endswith(("out.weight", "down.weight")) else 1.0
                nn.init.normal_(weight, std=0.02 * scale)

    def keep(self, blocks: Collection[int], first: bool, last: bool) -> None:
        """Drop everything that does not belong to this stage of a pipeline."""
        for name in list(self.blocks):
            if int(name) not in blocks:
                del self.blocks[name]
        if not first:
            self.embedding = None
        if not last:
            self.norm = self.head = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.embedding is not None:
            x = self.embedding(x)
        for block in self.blocks.values():
            x = block(x)
        if self.norm is not None and self.head is not None:
            x = self.head(self.norm(x))
        return x


@torch.no_grad()
def continue_text(net: LanguageModel, start: bytes, length: int, context: int, seed: int) -> bytes:
    """`start` with `length` more bytes, sampled one by one."""
    generator = torch.Generator().manual_seed(seed)
    text = list(start)
    for _ in range(length):
        logits = net(torch.tensor([text[-context:]]))[0, -1]
        text.append(int(torch.multinomial(torch.softmax(logits / 0.8, dim=0), 1, generator=generator)))
    return bytes(text)
