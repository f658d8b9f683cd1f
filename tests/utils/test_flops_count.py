"""torch_npu.utils.FlopsCounter against counts by hand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import torch_npu
from torch_npu.utils.flops_count import FlopsCounter as OldCounter


@pytest.fixture
def counter() -> Iterator[torch_npu.utils.FlopsCounter]:
    counter = torch_npu.utils.FlopsCounter()
    counter.stop()
    yield counter
    counter.stop()


def npu(*shape: int, **options) -> torch.Tensor:
    return torch.ones(*shape, device="npu", **options)


def counted(counter, call) -> int:
    counter.start()
    call()
    recorded, traversed = counter.get_flops()
    counter.stop()
    assert recorded == traversed
    return traversed


@pytest.mark.parametrize(
    ("call", "flops"),
    [
        (lambda: npu(3, 4) @ npu(4, 5), 2 * 3 * 4 * 5),
        (lambda: torch.bmm(npu(2, 3, 4), npu(2, 4, 5)), 2 * 2 * 3 * 4 * 5),
        (lambda: npu(6, 3, 4) @ npu(4, 5), 2 * 6 * 3 * 4 * 5),
        (lambda: torch.addmm(npu(5), npu(3, 4), npu(4, 5)), 2 * 3 * 4 * 5),
        (lambda: torch.baddbmm(npu(2, 3, 5), npu(2, 3, 4), npu(2, 4, 5)), 2 * 2 * 3 * 4 * 5),
        (lambda: npu(3, 4) @ npu(4), 2 * 3 * 4),
        (lambda: torch.nn.functional.linear(npu(7, 4), npu(5, 4), npu(5)), 2 * 7 * 4 * 5),
        (lambda: npu(0, 4) @ npu(4, 5), 0),
        (lambda: npu(3, 4) + 1, 0),
        (lambda: torch.ones(3, 4) @ torch.ones(4, 5), 0),
        (lambda: torch_npu.npu_linear(npu(7, 4), npu(5, 4)), 2 * 7 * 4 * 5),
        (
            lambda: torch.nn.functional.conv2d(npu(2, 3, 8, 8), npu(6, 3, 3, 3)),
            2 * 2 * 6 * 3 * 9 * 36,
        ),
        (
            lambda: torch.nn.functional.conv2d(
                npu(2, 4, 8, 8), npu(6, 2, 3, 3), stride=2, padding=1, groups=2
            ),
            2 * 2 * 6 * 2 * 9 * 16,
        ),
        (
            lambda: torch.nn.functional.conv1d(npu(2, 3, 10), npu(5, 3, 4), dilation=2),
            2 * 2 * 5 * 3 * 4 * 4,
        ),
        (
            lambda: torch.nn.functional.conv_transpose2d(npu(2, 3, 4, 4), npu(3, 5, 2, 2)),
            2 * 2 * 3 * 5 * 4 * 16,
        ),
        (lambda: torch_npu.npu_bmmV2(npu(2, 3, 4), npu(2, 4, 5), []), 2 * 2 * 3 * 4 * 5),
        (lambda: torch.mv(npu(3, 4), npu(4)), 2 * 3 * 4),
        (lambda: torch.einsum("bij,bjk->bik", npu(2, 3, 4), npu(2, 4, 5)), 2 * 2 * 3 * 4 * 5),
    ],
)
def test_products_and_convolutions(counter, call, flops):
    assert counted(counter, call) == flops


def test_the_backward_pass_counts_too(counter):
    x, w = npu(3, 4, requires_grad=True), npu(4, 5, requires_grad=True)
    assert counted(counter, lambda: (x @ w).sum().backward()) == 3 * 2 * 3 * 4 * 5


def test_a_convolutions_gradients(counter):
    x, w = npu(2, 3, 8, 8, requires_grad=True), npu(6, 3, 3, 3, requires_grad=True)
    each = 2 * 2 * 6 * 3 * 9 * 36
    assert counted(counter, lambda: torch.nn.functional.conv2d(x, w).sum().backward()) == 3 * each


@pytest.mark.parametrize(
    ("layout", "query", "key"),
    [
        ("BNSD", (2, 4, 6, 8), (2, 4, 10, 8)),
        ("BSND", (2, 6, 4, 8), (2, 10, 4, 8)),
        ("BSH", (2, 6, 32), (2, 10, 32)),
        ("SBH", (6, 2, 32), (10, 2, 32)),
        ("BNSD", (2, 4, 6, 8), (2, 2, 10, 8)),
    ],
)
def test_attention_in_every_layout(counter, layout, query, key):
    def forward():
        return torch_npu.npu_fusion_attention(npu(*query), npu(*key), npu(*key), 4, layout)

    assert counted(counter, forward) == 2 * (2 * 4 * 6 * 10 * 8)


def test_attention_of_sequences_of_different_length(counter):
    def forward():
        return torch_npu.npu_fusion_attention(
            npu(9, 2, 16), npu(12, 2, 16), npu(12, 2, 16), 2, "TND", actual_seq_qlen=[4, 9], actual_seq_kvlen=[5, 12]
        )  # fmt: skip

    assert counted(counter, forward) == 2 * 2 * (4 * 5 + 5 * 7) * 16


def test_attentions_gradient(counter):
    inputs = [npu(1, 2, 6, 8, requires_grad=True) for _ in range(3)]
    forward = 2 * (1 * 2 * 6 * 6 * 8)
    assert (
        counted(counter, lambda: torch_npu.npu_fusion_attention(*inputs, 2, "BNSD")[0].sum().backward())
        == forward + 2 * forward
    )  # fmt: skip


def test_grouped_products(counter):
    x, weights = npu(10, 4), [npu(4, 5) for _ in range(2)]

    def call():
        return torch_npu.npu_grouped_matmul([x[:3], x[3:]], weights, group_type=-1, split_item=0)

    assert counted(counter, call) == 2 * 10 * 4 * 5


def test_the_pages_example(counter):
    def matmul():
        torch.matmul(npu(3, 4), npu(4, 3))

    counter.start()
    matmul()
    assert counter.get_flops() == [72, 72]
    counter.pause()
    matmul()
    assert counter.get_flops() == [72, 144]
    counter.resume()
    matmul()
    assert counter.get_flops() == [144, 216]
    counter.stop()
    matmul()
    assert counter.get_flops() == [0, 0]


def test_all_counters_are_one(counter):
    other = torch_npu.utils.FlopsCounter()
    assert other is counter
    counter.start()
    counter.start()
    npu(3, 4) @ npu(4, 5)
    assert other.get_flops() == [120, 120]


def test_stop_finds_its_place_among_other_modes(counter):
    from torch.utils.flop_counter import FlopCounterMode

    counter.start()
    with FlopCounterMode(display=False) as theirs:
        npu(3, 4) @ npu(4, 5)
        assert counter.get_flops() == [120, 120]
        counter.stop()
        npu(3, 4) @ npu(4, 5)
    assert theirs.get_total_flops() == 240 and counter.get_flops() == [0, 0]


def test_with_block(counter):
    with counter:
        npu(3, 4) @ npu(4, 5)
        assert counter.get_flops() == [120, 120]
    assert counter.get_flops() == [0, 0]


def test_the_old_name_warns():
    with pytest.warns(FutureWarning, match="will be deprecated"):
        assert OldCounter().get_flops() == [0, 0]
