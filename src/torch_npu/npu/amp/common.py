"""Whether automatic mixed precision can work at all."""

from torch_npu.npu._device import is_available


def amp_definitely_not_available() -> bool:
    return not is_available()
