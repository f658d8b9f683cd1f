"""The rules of storage formats: their base formats, padded sizes, and which format a shape gets.

A tensor's bytes stay in natural order here. A private format is a tag and a padded size, kept for each storage
(csrc/torch/memory/format.cpp), so views and detached tensors share them. The sizes are those of the card: the last two
dimensions in blocks of 16 x C0 for FRACTAL_NZ, channels in blocks of 16 for the others.

Differs from upstream: `torch.empty_like` of a tensor in a private format gives a base format (upstream keeps it where
`allow_internal_format` is on), `resize_` to fewer bytes keeps the private format, and on Ascend950 `copy_` into and
views of a private format work, which the card refuses.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from softnpu import _C, chips
from torch_npu._errors import BadArgument, ErrCode
from torch_npu.npu._format import Format
from torch_npu.npu.npu_config import _npuConfig
from torch_npu.ops import _check as must

_BLOCK = 16
_BLOCK_BYTES = 32

#: format -> the base format that it is a private form of (a base format is its own)
BASE: dict[int, Format] = {
    Format.NCHW: Format.NCHW,
    Format.NHWC: Format.NHWC,
    Format.ND: Format.ND,
    Format.NCDHW: Format.NCDHW,
    Format.NC1HWC0: Format.NCHW,
    Format.FRACTAL_Z: Format.NCHW,
    Format.FRACTAL_NZ: Format.ND,
    Format.NDHWC: Format.NCDHW,
    Format.NDC1HWC0: Format.NCDHW,
    Format.FRACTAL_Z_3D: Format.NCDHW,
    Format.FRACTAL_NZ_C0_16: Format.ND,
    Format.FRACTAL_NZ_C0_32: Format.ND,
    Format.FRACTAL_NZ_C0_2: Format.ND,
    Format.FRACTAL_NZ_C0_4: Format.ND,
    Format.FRACTAL_NZ_C0_8: Format.ND,
}
#: NZ whose C0 is fixed, whatever the dtype
NZ_WIDTH: dict[int, int] = {
    Format.FRACTAL_NZ_C0_16: 16,
    Format.FRACTAL_NZ_C0_32: 32,
    Format.FRACTAL_NZ_C0_2: 2,
    Format.FRACTAL_NZ_C0_4: 4,
    Format.FRACTAL_NZ_C0_8: 8,
}
NZ = frozenset({Format.FRACTAL_NZ, *NZ_WIDTH})
_FIVE = frozenset({Format.NCDHW, Format.NDHWC, Format.NDC1HWC0, Format.FRACTAL_Z_3D})


@dataclass(frozen=True)
class Description:
    """What upstream keeps for a storage: its format, base format, and the sizes it was made with."""

    format: int
    origin: int
    sizes: tuple[int, ...]
    padded: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.padded)


def is_base(number: int) -> bool:
    return BASE[number] == number


def known(name: str, number: int) -> int:
    """The format's number; one that no tensor can have is an error."""
    if number not in BASE:
        expected = "one of " + ", ".join(f"{Format(f).name} ({int(f)})" for f in sorted(BASE))
        raise BadArgument(name, expected, number, ErrCode.PARAM)
    return number


def guess(sizes: Sequence[int]) -> Format:
    """The format of a tensor that nobody gave one."""
    return {5: Format.NCDHW, 4: Format.NCHW}.get(len(sizes), Format.ND)


def describe(tensor: torch.Tensor) -> Description:
    """The description of the tensor's storage."""
    found = _C.storage_format(tensor)
    if found is not None:
        number, origin, sizes, padded = found
        return Description(number, origin, tuple(sizes), tuple(padded))
    whole = tensor._base if tensor._is_view() and tensor._base is not None else tensor
    sizes = tuple(whole.shape)
    return Description(guess(sizes), guess(sizes), sizes, sizes)


def tag(tensor: torch.Tensor, description: Description) -> None:
    _C.set_storage_format(
        tensor, description.format, description.origin, description.sizes, description.padded
    )


# --- the sizes that a format makes of a shape -------------------------------------------------------------------


def _blocks(size: int, block: int) -> int:
    return -(-size // block)


def _four(argument: str, number: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """A shape of fewer dimensions as NCHW: C, CH or CHW, with ones for the rest."""
    if len(sizes) > 4:
        raise BadArgument(
            argument, f"of at most 4 dimensions for {name(number)}", tuple(sizes), _BAD
        )
    if len(sizes) == 4:
        return tuple(sizes)
    return (1, *sizes, *(1,) * (3 - len(sizes))) if sizes else (1, 1, 1, 1)


def _nz(sizes: Sequence[int], width: int) -> tuple[int, ...]:
    *batch, rows, columns = (*sizes, *(1,) * max(0, 2 - len(sizes)))
    return (*batch, _blocks(columns, width), _blocks(rows, _BLOCK), _BLOCK, width)


def padded_sizes(
    number: int, sizes: Sequence[int], itemsize: int, argument: str = "size"
) -> tuple[int, ...]:
    """The sizes of the storage, in elements, of a tensor in the format; `argument` is named in errors."""
    if number in NZ:
        return _nz(sizes, NZ_WIDTH.get(number) or _BLOCK_BYTES // min(itemsize, 2))
    if number in _FIVE:
        if len(sizes) < 5:
            raise BadArgument(argument, f"of 5 dimensions for {name(number)}", tuple(sizes), _BAD)
        n, c, d, h, w = sizes[:5]
        if number == Format.NDHWC:
            return (n, d, h, w, c)
        if number == Format.NDC1HWC0:
            return (n, d, _blocks(c, _BLOCK), h, w, _BLOCK)
        if number == Format.FRACTAL_Z_3D:
            return (d * _blocks(c, _BLOCK) * h * w, _blocks(n, _BLOCK), _BLOCK, _BLOCK)
        return (n, c, d, h, w)
    if number == Format.NC1HWC0:
        n, c, h, w = _four(argument, number, sizes)
        return (n, _blocks(c, _BLOCK), h, w, _BLOCK)
    if number == Format.FRACTAL_Z:
        n, c, h, w = _four(argument, number, sizes)
        return (_blocks(c, _BLOCK) * h * w, _blocks(n, _BLOCK), _BLOCK, _BLOCK)
    if number == Format.NHWC and len(sizes) != 4:
        raise BadArgument(argument, "of 4 dimensions for NHWC", tuple(sizes), _BAD)
    return tuple(sizes)


def name(number: int) -> str:
    return Format(number).name


_BAD = ErrCode.PARAM


# --- which format a shape gets ----------------------------------------------------------------------------------


def allowed() -> bool:
    """Whether a cast may give a private format: `torch.npu.config.allow_internal_format`; always on Ascend950."""
    return chips.current().family == "A5" or _npuConfig().allow_internal_format


_warned: set[str] = set()


def _warn_once(text: str) -> None:
    if text not in _warned:
        _warned.add(text)
        warnings.warn(text, stacklevel=4)


def permitted(number: int) -> int:
    """The format, or its base format where private ones are switched off."""
    if is_base(number) or allowed():
        return number
    _warn_once(
        "Cannot create tensor with internal format while allow_internal_format=False, "
        "tensor will be created with base format."
    )
    return BASE[number]


def fitted(sizes: Sequence[int], number: int) -> int:
    """The format that a tensor of this shape can have, if not the one asked for."""
    rank = len(sizes)
    if number == Format.FRACTAL_NZ and rank < 2:
        _warn_once(
            "Cannot create tensor with NZ format while dim < 2, tensor will be created with ND format."
        )
        return Format.ND
    if number == Format.NCDHW:
        return guess(sizes)
    if number == Format.NCHW and rank != 4:
        return Format.ND
    if rank == 0 or (tuple(sizes) == (1,) and BASE[number] == Format.ND):
        return Format.ND
    return number


def _unit(sizes: Sequence[int], number: int) -> tuple[int, int]:
    """(base format, format) as they are written down: four dimensions are never ND."""
    base = BASE[number]
    if len(sizes) == 4 and (number == Format.ND or base == Format.NCDHW):
        return Format.NCHW, Format.NCHW
    return base, number


def create(
    sizes: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
    number: int,
    *,
    width: int | None = None,
    alignment: int = 0,
    at_least: int = 0,
    argument: str = "size",
) -> torch.Tensor:
    """An uninitialized tensor in the format; `width` is the C0 of NZ.

    `at_least` is a number of elements that a view will be put on, so the sizes are written down in any case.
    """
    number = fitted(sizes, number)
    if width and number in NZ:
        padded = _nz(sizes, width)
    else:
        padded = padded_sizes(number, sizes, dtype.itemsize, argument)
    elements = max(math.prod(padded), at_least)
    must.countable(argument, elements, list(sizes))
    tensor = _C.padded_empty(list(sizes), elements, dtype, device, alignment)
    origin, number = _unit(sizes, number)
    if at_least or not (number == origin == guess(sizes)):
        tag(tensor, Description(int(number), int(origin), tuple(sizes), tuple(padded)))
    return tensor
