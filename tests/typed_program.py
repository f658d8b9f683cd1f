"""A typed program: `make dist` lets mypy read it beside the wheel, so that editors know torch.npu and torch_npu.

Nobody runs it. Where a line must be refused, mypy must not find its `ignore` superfluous.
"""

# mypy: warn-unused-ignores

from __future__ import annotations

from typing import assert_type

import torch

import torch_npu
import torchair


def device() -> torch.Tensor:
    assert_type(torch.npu.device_count(), int)
    assert_type(torch.npu.is_available(), bool)
    stream = torch.npu.Stream()
    assert_type(stream, torch_npu.npu.Stream)
    with torch.npu.stream(stream):
        x = torch.ones(4, 8, device="npu")
    return x


def operators(x: torch.Tensor) -> torch.Tensor:
    y, rstd = torch_npu.npu_rms_norm(x, torch.ones(8, device="npu"), epsilon=1e-6)
    assert_type(rstd, torch.Tensor)
    assert_type(torch_npu.npu_swiglu(y), torch.Tensor)
    return torch_npu.npu_format_cast(y, torch_npu.Format.FRACTAL_NZ)


def others(x: torch.Tensor) -> None:
    """The stub of torch.functional says what torch says."""
    assert_type(torch.einsum("ij->i", x), torch.Tensor)
    assert_type(torch.split(x, 2), tuple[torch.Tensor, ...])
    torchair.get_npu_backend()


def refused() -> None:
    torch.npu.nonsense  # type: ignore[attr-defined]  # noqa: B018
    torch_npu.nonsense  # type: ignore[attr-defined]  # noqa: B018
    torch_npu.npu_swiglu("text")  # type: ignore[arg-type]
    torch.functional.nonsense  # type: ignore[attr-defined]  # noqa: B018
