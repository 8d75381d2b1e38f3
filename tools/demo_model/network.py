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

    def forward(self, x: Tensor, turn: Tensor) -> Tensor:
        """The stream after this layer, (batch, length, width)."""
        batch, length, width = x.shape
        h = functional.rms_norm(x, (width,), self.attn_norm, 1e-5)
        qkv = functional.linear(h, torch.cat((self.q, self.k, self.v)))
        q, k, v = qkv.view(batch, length, 3, self.heads, -1).unbind(2)
        q, k = rotate(q.transpose(1, 2), turn), rotate(k.transpose(1, 2), turn)
        mixed = functional.scaled_dot_product_attention(q, k, v.transpose(1, 2), is_causal=True)
        x = x + functional.linear(mixed.transpose(1, 2).reshape(batch, length, width), self.o)
        h = functional.rms_norm(x, (width,), self.ffn_norm, 1e-5)
        gate, up = functional.linear(h, torch.cat((self.gate, self.up))).chunk(2, dim=-1)
        return x + functional.linear(functional.silu(gate) * up, self.down)


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

    def forward(self, ids: Tensor, wanted: Tensor) -> Tensor:
        """Logits at the wanted places, (places, vocabulary), of token ids, (batch, length)."""
        x = functional.embedding(ids, self.embedding)
        for layer in self.layers:
            x = layer(x, self.turn)
        h = functional.rms_norm(x[wanted], (self.shape.width,), self.norm, 1e-5)
        return functional.linear(h, self.embedding)
