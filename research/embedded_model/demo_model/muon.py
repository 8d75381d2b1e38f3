"""Muon: momentum whose matrices are made orthogonal before each step (Newton-Schulz iterations).

On this network it needs about half the steps of AdamW. Matrices of one shape are treated in one batch.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def orthogonalised(matrices: Tensor, steps: int = 5) -> Tensor:
    """The nearest orthogonal matrices, roughly: (count, rows, columns) with rows <= columns."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = (matrices / (matrices.norm(dim=(1, 2), keepdim=True) + 1e-7)).bfloat16()
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.type_as(matrices)


class Muon:
    """The optimiser of the network's matrices."""

    def __init__(self, matrices: Sequence[Tensor], momentum: float = 0.95) -> None:
        self.momentum = momentum
        groups: dict[tuple[int, int], list[Tensor]] = {}
        for matrix in matrices:
            rows, columns = matrix.shape
            groups.setdefault((min(rows, columns), max(rows, columns)), []).append(matrix)
        self.groups = list(groups.values())
        self.buffers = [torch.stack([self._wide(matrix) * 0 for matrix in group]) for group in self.groups]

    @staticmethod
    def _wide(matrix: Tensor) -> Tensor:
        return matrix.detach() if matrix.shape[0] <= matrix.shape[1] else matrix.detach().mT

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, rate: float) -> None:
        """Move every matrix against its gradient."""
        for group, buffer in zip(self.groups, self.buffers, strict=True):
            gradients = torch.stack([self._wide(matrix.grad) for matrix in group if matrix.grad is not None])
            buffer.lerp_(gradients, 1 - self.momentum)
            updates = orthogonalised(gradients.lerp(buffer, self.momentum))
            for matrix, update in zip(group, updates, strict=True):
                rows, columns = matrix.shape
                scale = max(1.0, rows / columns) ** 0.5
                matrix.mul_(1 - 0.02 * rate)
                matrix.add_(update if rows <= columns else update.mT, alpha=-rate * scale)
