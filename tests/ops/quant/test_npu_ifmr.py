"""npu_ifmr against a search by plain loops in fp64."""

import pytest
import torch

import torch_npu
from tests.ops.support import make


def histogram(data, bins):
    low, high = data.min().item(), data.max().item()
    return torch.histc(data.float(), bins, low, high).cumsum(0).int()


def search(data, cumsum, percentiles, span, with_offset):
    """Scale and error of every candidate, and its offset."""
    data = data.double().flatten()
    low, high, bins = data.min(), data.max(), len(cumsum)
    below = lambda p: sum(float(c) / data.numel() < p for c in cumsum)  # noqa: E731
    top = below(percentiles[1]) / bins * (high - low) + low
    bottom = below(1 - percentiles[0]) / bins * (high - low) + low
    found, factor = [], span[0]
    while factor < span[1] + span[2] / 2:
        if with_offset:
            up, down = max(float(top), 0.0), min(float(bottom), 0.0)
            scale = (factor * up - down) / 255
            offset = -round(down / scale) - 128
        else:
            scale, offset = factor * max(float(top), abs(float(bottom))) / 127, 0
        q = ((data / scale).round() + offset).clamp(-128, 127)
        found.append((((q - offset) * scale - data).square().sum().item(), scale, offset))
        factor += span[2]
    return found


@pytest.mark.parametrize("with_offset", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("low,high", [(-1, 1), (0.2, 3), (-5, -1)])
def test_the_best_candidate(with_offset, dtype, low, high):
    data = make(7, 50, dtype=dtype, low=low, high=high)
    cumsum = histogram(data.cpu(), 64)
    span = (0.7, 1.3, 0.01)
    scale, offset = torch_npu.npu_ifmr(
        data,
        data.min().reshape(1),
        data.max().reshape(1),
        cumsum.npu(),
        0.99,
        0.99,
        *span,
        with_offset,
    )
    assert scale.shape == (1,) and scale.dtype == offset.dtype == torch.float32
    candidates = search(data.cpu(), cumsum.tolist(), (0.99, 0.99), span, with_offset)
    least = min(error for error, _, _ in candidates)
    close = [(s, o) for error, s, o in candidates if error <= least * (1 + 1e-3)]
    mine = (float(scale), float(offset))
    assert any(abs(mine[0] - s) <= 1e-5 * abs(s) and mine[1] == o for s, o in close)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"search_step": 0.0}, "'search_step' must be positive"),
        ({"search_step": 1e-4}, "'search_step' must be such that at most 4096 factors are tried"),
        ({"search_start": 0.0}, "'search_start' must be positive"),
        ({"search_end": 0.7}, r"'search_end' must be above search_start \(0.7\)"),
        ({"data_max": make()}, "'data_max' must be a tensor of 1 dimensions"),
        ({"max_percentile": 1.5}, r"'max_percentile' must be in \(0, 1\]"),
        ({"cumsum": make(4)}, "'cumsum' must be of dtype torch.int32"),
        ({"data_min": make(2)}, "'data_min' must be of one element"),
        ({"data": make(4, dtype=torch.bfloat16)}, "'data' must be of dtype torch.float32 or torch.float16"),
    ],
)  # fmt: skip
def test_refusals(changes, message):
    given = {
        "data": make(4),
        "data_min": make(1),
        "data_max": make(1),
        "cumsum": torch.ones(4).int().npu(),
        "min_percentile": 0.9,
        "max_percentile": 0.9,
        "search_start": 0.7,
        "search_end": 1.3,
        "search_step": 0.1,
        "with_offset": True,
    }
    with pytest.raises(RuntimeError, match=message):
        torch_npu.npu_ifmr(**{**given, **changes})
