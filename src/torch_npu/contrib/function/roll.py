"""roll: a cyclic shift of the two middle dimensions, as Swin Transformers make it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torch_npu.contrib._checks import require

__all__ = ["roll"]


class _Roll:
    """Selects by an index that is made once for each shape; calls like a function."""

    def __init__(self) -> None:
        self.index_dict: dict[tuple[object, ...], torch.Tensor] = {}

    def __call__(self, x: torch.Tensor, shifts: Sequence[int], dims: Sequence[int]) -> torch.Tensor:
        """`torch.roll(x, shifts, dims)` of dimensions 1 and 2 of a tensor (n, h, w, c).

        Args:
            x: four dimensions.
            shifts: how far, in each of the two dimensions.
            dims: the two dimensions, (1, 2).

        Returns:
            The shifted tensor.
        """
        require(x.dim() == 4, "roll", "x", "a tensor of 4 dimensions", tuple(x.shape))
        require(len(shifts) == 2, "roll", "shifts", "two numbers", shifts)
        require(len(dims) == 2, "roll", "dims", "two numbers", dims)
        turned = tuple(d % 4 for d in dims)
        require(sorted(turned) == [1, 2], "roll", "dims", "the dimensions 1 and 2", dims)
        n, h, w, c = x.shape
        key = (h, w, tuple(shifts), turned, x.device)
        if key not in self.index_dict:
            places = torch.arange(h * w).reshape(h, w)
            shifted = torch.roll(places, tuple(shifts), tuple(d - 1 for d in turned))
            self.index_dict[key] = shifted.reshape(-1).to(x.device)
        return x.reshape(n, h * w, c).index_select(1, self.index_dict[key]).reshape(n, h, w, c)


roll = _Roll()
