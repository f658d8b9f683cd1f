"""torch's LSTM and LSTMCell with parameters of another dtype than the input, as upstream takes them.

Upstream rounds the weights and biases to the dtype of the input; PyTorch itself would refuse. With one
dtype throughout, these are PyTorch's own functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

_library = torch.library.Library("aten", "IMPL")  # noqa: TOR901


def _rounded(
    tensors: Sequence[torch.Tensor | None], input: torch.Tensor
) -> list[torch.Tensor | None]:
    """The parameters in the dtype of the input."""
    if not input.is_floating_point():
        return list(tensors)
    return [None if t is None else t.to(input.dtype) for t in tensors]


def _lstm_cell(
    input: torch.Tensor,
    hx: Sequence[torch.Tensor],
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: torch.Tensor | None = None,
    b_hh: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    parameters = _rounded((w_ih, w_hh, b_ih, b_hh), input)
    return torch.ops.aten.lstm_cell.default.decompose(input, hx, *parameters)


def _lstm_input(
    input: torch.Tensor, hx: Sequence[torch.Tensor], params: Sequence[torch.Tensor], *rest: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.ops.aten.lstm.input.decompose(input, hx, _rounded(params, input), *rest)


def _lstm_data(
    data: torch.Tensor,
    batch_sizes: torch.Tensor,
    hx: Sequence[torch.Tensor],
    params: Sequence[torch.Tensor],
    *rest: Any,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rounded = _rounded(params, data)
    return torch.ops.aten.lstm.data.decompose(data, batch_sizes, hx, rounded, *rest)


for _key in ("PrivateUse1", "AutogradPrivateUse1"):
    _library.impl("lstm_cell", _lstm_cell, _key)
    _library.impl("lstm.input", _lstm_input, _key)
    _library.impl("lstm.data", _lstm_data, _key)
