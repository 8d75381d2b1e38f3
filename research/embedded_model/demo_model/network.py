"""The network: a llama-architecture decoder, small enough to train on a processor (PyTorch, training only)."""

from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Shape:
    """The network's dimensions."""

    vocabulary: int
    width: int = 192
    layers: int = 5
    heads: int = 6
    hidden: int = 512
    context: int = 2048
    rope_base: float = 10000.0

    def as_dict(self) -> dict[str, int | float]:
        """The dimensions by name, for checkpoints."""
        return asdict(self)


def rotation(shape: Shape) -> Tensor:
    """The rotary angles' cosines and sines, (2, context, head width / 2)."""
    size = shape.width // shape.heads
    frequencies = shape.rope_base ** (-torch.arange(0, size, 2, dtype=torch.float32) / size)
    angles = torch.outer(torch.arange(shape.context, dtype=torch.float32), frequencies)
    return torch.stack((angles.cos(), angles.sin()))


def rotate(x: Tensor, turn: Tensor) -> Tensor:
    """Turn neighbouring pairs of dimensions, as llama.cpp does for this architecture."""
    cos, sin = turn[0, : x.shape[2]], turn[1, : x.shape[2]]
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


def attended(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Attention, written out: on a processor its gradient is three times as fast as that of the fused kernel."""
    scores = q * q.shape[-1] ** -0.5 @ k.mT + mask.type_as(q)
    return scores.softmax(dim=-1).type_as(v) @ v


class Layer(nn.Module):  # type: ignore[misc]
    """Attention and a gated feed-forward part, each on a normalised residual stream."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width, hidden = shape.width, shape.hidden
        self.heads = shape.heads
        self.attn_norm = nn.Parameter(torch.ones(width))
        self.ffn_norm = nn.Parameter(torch.ones(width))
        self.q, self.k, self.v, self.o = (nn.Parameter(torch.empty(width, width)) for _ in range(4))
        self.gate, self.up = (nn.Parameter(torch.empty(hidden, width)) for _ in range(2))
        self.down = nn.Parameter(torch.empty(width, hidden))
        for weight in (self.q, self.k, self.v, self.gate, self.up):
            nn.init.normal_(weight, std=width**-0.5)
        for weight in (self.o, self.down):
            nn.init.normal_(weight, std=0.02)

    def forward(self, x: Tensor, turn: Tensor, before: "Before | None" = None) -> tuple[Tensor, Tensor, Tensor]:
        """The stream after this layer, (batch, length, width), and its keys and values."""
        batch, length, width = x.shape
        h = functional.rms_norm(x, (width,), self.attn_norm, 1e-5)
        qkv = functional.linear(h, torch.cat((self.q, self.k, self.v)))
        q, k, v = qkv.view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        q, k = rotate(q, turn).type_as(v), rotate(k, turn).type_as(v)
        if before is None:
            mixed = attended(q, k, v, _mask(0, length))
        else:
            keys, values = (
                torch.cat((shared.expand(batch, -1, -1, -1), own), dim=2)
                for shared, own in ((before.keys, k), (before.values, v))
            )
            mixed = attended(q, keys, values, before.mask)
        x = x + functional.linear(mixed.transpose(1, 2).reshape(batch, length, width), self.o)
        h = functional.rms_norm(x, (width,), self.ffn_norm, 1e-5)
        gate, up = functional.linear(h, torch.cat((self.gate, self.up))).chunk(2, dim=-1)
        return x + functional.linear(functional.silu(gate) * up, self.down), k, v


@dataclass(frozen=True)
class Before:
    """Keys and values of what stands before all sequences of a batch, and the mask of who sees what."""

    keys: Tensor
    values: Tensor
    mask: Tensor


def _mask(shared: int, length: int) -> Tensor:
    """All that is shared is seen, and of the own what stands before."""
    own = torch.full((length, length), float("-inf")).triu(1)
    return torch.cat((torch.zeros(length, shared), own), dim=1)


class Network(nn.Module):  # type: ignore[misc]
    """Embedding, layers, norm; the embedding also reads the result out."""

    turn: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Parameter(torch.randn(shape.vocabulary, shape.width) * 0.05)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.Parameter(torch.ones(shape.width))
        self.register_buffer("turn", rotation(shape), persistent=False)

    def forward(self, ids: Tensor, wanted: Tensor, shared: Tensor | None = None) -> Tensor:
        """Logits at the wanted places, (places, vocabulary), of token ids, (batch, length).

        `shared` are ids that all sequences begin with, computed once: agents have long prompts in common.
        """
        x = functional.embedding(ids, self.embedding)
        count = 0 if shared is None else len(shared)
        turn = self.turn[:, count:]
        if shared is None or count == 0:
            for layer in self.layers:
                x, _, _ = layer(x, turn)
        else:
            first, mask = functional.embedding(shared[None], self.embedding), _mask(count, ids.shape[1])
            for layer in self.layers:
                first, keys, values = layer(first, self.turn)
                x, _, _ = layer(x, turn, Before(keys, values, mask))
        h = functional.rms_norm(x[wanted], (self.shape.width,), self.norm, 1e-5)
        return functional.linear(h, self.embedding)
