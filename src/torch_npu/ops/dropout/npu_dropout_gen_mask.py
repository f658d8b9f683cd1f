"""npu_dropout_gen_mask: a bit mask from the device's generator."""

from __future__ import annotations

import math

import torch
from torch._C import DispatchKey, DispatchKeySet

from torch_npu.ops import _check as must
from torch_npu.ops._operator import library
from torch_npu.ops._registry import Sample, kernel_generator, npu_op
from torch_npu.ops._shared import _dropout_mask as _mask


@npu_op(
    "npu_dropout_gen_mask(int[] size, float p, *, ScalarType? dtype=None, Layout? layout=None,"
    " Device? device=None, bool? pin_memory=None) -> Tensor",
    random=True,
)
def npu_dropout_gen_mask(size, p):
    r"""A dropout bit mask for tensors of a given shape, to be used by `npu_dropout_do_mask`.

    $$ P(m_i = 0) = p $$

    Args:
        size: the shape of the tensor that the mask is for.
        p: the probability of dropping an element, from 0 to 1.
        dtype: of no effect; the mask is uint8.
        layout: strided.
        device: an NPU; the current one if not given.
        pin_memory: not for device memory.

    Returns:
        uint8 of ceil(numel / 128) * 16 bytes; bit i, the lowest of a byte first, keeps element i.

    Differs from upstream: the same seed gives other bits than the card's generator would.
    """
    count = _mask.aligned(math.prod(size))
    return _mask.pack(_mask.draw(count, p, torch.device("cpu"), kernel_generator()))


@npu_dropout_gen_mask.check
def _(size, p, dtype, layout, device, pin_memory):
    must.hold(all(s >= 0 for s in size), "size", "a list of sizes", list(size))
    must.countable("size", math.prod(size) + _mask.ALIGNMENT, list(size))
    _mask.check_probability(p)
    must.anything(dtype)
    must.choice("layout", layout, (None, torch.strided))
    must.hold(device is None or device.type in ("npu", "meta"), "device", "an NPU", device)
    must.hold(not pin_memory, "pin_memory", "False", pin_memory)


@npu_dropout_gen_mask.meta
def _(size, device):
    place = device if device is not None else torch.device("npu", torch.npu.current_device())
    return torch.empty(_mask.aligned(math.prod(size)) // 8, dtype=torch.uint8, device=place)


npu_dropout_gen_mask.samples = [
    Sample(lambda make: ([17, 19], 0.4)),
    Sample(lambda make: ([4, 32], 0.0), {"dtype": torch.float16, "device": "npu"}),
]


def _on_device(size, p, **options):
    """Without a tensor argument the dispatcher cannot see the device; this chooses it."""
    device = options.get("device")
    index = device.index if device is not None and device.type == "npu" else None
    here = torch.npu.current_device() if index is None else index
    with torch.npu.device(here):
        return torch.ops.npu.npu_dropout_gen_mask.default.redispatch(
            DispatchKeySet(DispatchKey.PrivateUse1), size, p, **options
        )


library.impl("npu_dropout_gen_mask", _on_device, "BackendSelect")
