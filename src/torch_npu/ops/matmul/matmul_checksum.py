"""matmul_checksum: whether a bfloat16 product is wrong (upstream's torch_npu.asd.checksum).

Not an operator of the dispatcher, upstream has it as a Python function too: its parts run as
ordinary operators on the device.
"""

from __future__ import annotations

import torch

from torch_npu._errors import BadArgument, ErrCode, operator_error, pta_error
from torch_npu.ops._registry import public

_DEVICE = "npu"

#: rounding to bfloat16 is off by this much of a value at most
_ROUNDING = 2.0**-9
#: row sums are suspect this many times the root of the squared roundings away
_SUSPECT = 4.0
#: what sums in fp32 may lose of the sum of the magnitudes: of a whole row, and of one element
_ROW_SUM, _ELEMENT_SUM = 2.0**-21, 2.0**-16


@public
def matmul_checksum(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    r"""Whether `c` differs from `a @ b` by more than rounding explains: a sign of faulty hardware.

    The sum of each row of the product is known without the product:

    $$ \sum_j c_{ij} = \sum_k a_{ik} \Big(\sum_j b_{kj}\Big) $$

    A row is suspect where the two sides differ by more than the rounding of its elements can make
    likely, $ 4 \cdot 2^{-9} \lVert c_i \rVert_2 $ and what fp32 sums lose. Only then is the product
    computed anew in fp32, and the answer is whether an element of `c` lies outside the rounding of
    its new value; so rounding alone is never called a fault.

    Args:
        a: the left factor of `torch.matmul`, bfloat16 on the NPU.
        b: the right factor.
        c: the product to check.

    Returns:
        A bool tensor without dimensions on the NPU; True where the product is wrong.

    Differs from upstream:
        Upstream's threshold grows with the number of columns (a single wrong element must exceed
        about 40 times the mean for 2000 of them), NaN passes it, and `c` is overwritten when a row
        is suspect. Here the threshold grows with its root, NaN is found, and `c` stays as it is.
    """
    for name, value in (("a", a), ("b", b), ("c", c)):
        if not isinstance(value, torch.Tensor) or value.device.type != _DEVICE:
            found = value.device.type if isinstance(value, torch.Tensor) else type(value).__name__
            raise TypeError(
                f"matmul_checksum: argument '{name}' must be a tensor on the {_DEVICE} device, "
                f"but received {found}.{pta_error(ErrCode.PARAM)}"
            )
        if value.dtype != torch.bfloat16:
            bad = BadArgument(name, f"of dtype {torch.bfloat16}", value.dtype, ErrCode.TYPE)
            raise operator_error("matmul_checksum", bad)
    shape = _product_shape(a, b)
    if tuple(c.shape) != shape:
        bad = BadArgument(
            "c", f"of shape {shape}, that of the product", tuple(c.shape), ErrCode.PARAM
        )
        raise operator_error("matmul_checksum", bad)
    left, right, result = _matrices(a.float(), b.float(), c.float())
    suspect = _suspect_rows(left, right, result).any()
    return _wrong_elements(left, right, result).any() if suspect else suspect


def _product_shape(a: torch.Tensor, b: torch.Tensor) -> tuple[int, ...]:
    """The shape of `torch.matmul(a, b)`; errors in it are torch's own."""
    return tuple(torch.matmul(a.to("meta"), b.to("meta")).shape)


def _matrices(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Factors and product with the rows and columns that matmul drops for vectors."""
    if b.dim() == 1:
        b, c = b.unsqueeze(-1), c.unsqueeze(-1)
    if a.dim() == 1:
        a, c = a.unsqueeze(0), c.unsqueeze(-2)
    return a, b, c


def _suspect_rows(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """Rows whose sum is not the one that the factors promise; NaN is always suspect."""
    promised = torch.matmul(a, b.sum(-1, keepdim=True)).squeeze(-1)
    magnitude = torch.matmul(a.abs(), b.abs().sum(-1, keepdim=True)).squeeze(-1)
    # fp64: the square of a corrupted element may leave fp32; an infinite limit excuses anything
    norm = torch.linalg.vector_norm(c, dim=-1, dtype=torch.float64)
    limit = _SUSPECT * _ROUNDING * norm + _ROW_SUM * magnitude
    return ~((c.sum(-1) - promised).abs() <= limit)


def _wrong_elements(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """Elements outside the rounding of the product computed anew."""
    product = torch.matmul(a, b)
    limit = 2 * _ROUNDING * product.abs() + _ELEMENT_SUM * torch.matmul(a.abs(), b.abs())
    same = (c == product) | (c.isnan() & product.isnan())
    return ~(same | ((c - product).abs() <= limit))
