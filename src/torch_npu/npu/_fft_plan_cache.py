"""torch.npu.backends.fft_plan_cache: its limit can be set and read; there are no plans here, so it stays empty."""

from __future__ import annotations

from torch_npu._errors import ErrCode, pta_error


class NPUFFTPlanCache:
    """How many plans of FFTs the card keeps.

    Differs from upstream: FFTs are computed by PyTorch's CPU library, which keeps no plans: `size` is 0.
    """

    _max_size = 8

    @property
    def size(self) -> int:
        """How many plans there are."""
        return 0

    @size.setter
    def size(self, value: int) -> None:
        raise RuntimeError(
            ".size is a read-only property showing the number of plans currently in the cache."
        )

    @property
    def max_size(self) -> int:
        """How many plans there may be."""
        return self._max_size

    @max_size.setter
    def max_size(self, value: int) -> None:
        if not 0 < value < 100:
            raise RuntimeError(
                f"fft_plan_cache: max_size must be from 1 to 99, but is {value}"
                + pta_error(ErrCode.VALUE)
            )
        self._max_size = value

    def clear(self) -> None:
        """Forgets all plans."""
