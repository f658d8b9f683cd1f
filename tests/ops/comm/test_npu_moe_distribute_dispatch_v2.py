"""npu_moe_distribute_dispatch_v2 in a mirrored group: what it refuses. On ranks: test_moe_on_ranks."""

import pytest
import torch

import torch_npu
from tests.ops.comm.moe_support import DOMAIN, dispatch, ids
from tests.ops.families import as_chip
from tests.ops.support import make

WRONG = [
    *DOMAIN,
    (
        {"ep_world_size": 9},
        "'ep_world_size' must be 1 to 8, or a multiple of it up to 384, but received 9",
    ),
    ({"moe_expert_num": 3}, r"'moe_expert_num' must be a multiple of .*\(2\), but received 3"),
    ({"moe_expert_num": 1026}, r"'moe_expert_num' must be in \[1, 1024\]"),
    ({"quant_mode": 1}, "'quant_mode' must be 0 or 2, but received 1"),
    ({"expert_token_nums_type": 2}, "'expert_token_nums_type' must be 0 or 1, but received 2"),
    ({"comm_alg": "ring"}, "'comm_alg' must be '', 'fullmesh' or 'hierarchy'"),
    (
        {"comm_alg": "hierarchy", "ep_world_size": 72, "group_ep": "softnpu%mirror_72"},
        "'ep_world_size' must be 1 to 8, or a multiple of it up to 64",
    ),
    ({"const_expert_num": 1}, "'const_expert_num' must be left at 0"),
    ({"zero_expert_num": -1}, "'zero_expert_num' must be in"),
    (
        {"x": lambda: make(4, 40, dtype=torch.float16)},
        "'x' must be of H a multiple of 32 up to 10240",
    ),
    ({"x": lambda: make(4, 32)}, "'x' must be of dtype"),
    ({"scales": lambda: make(4, 32)}, "'scales' must be left at None"),
    ({"scales": lambda: make(3, 32), "quant_mode": 2}, r"'scales' must be of shape \(4, 32\)"),
    (
        {"expert_ids": lambda: ids(first=3)},
        r"'expert_ids' must be values in \[0, 4\), but received \(3, 4\)",
    ),
    (
        {"expert_ids": lambda: torch.zeros_like(ids())},
        "'expert_ids' must be different experts in each row",
    ),
    ({"expert_ids": lambda: ids(k=5)}, r"'expert_ids' must be of K in \(0, 4\], but received 5"),
    (
        {"x_active_mask": lambda: torch.tensor([True, False, True, False]).npu()},
        "'x_active_mask' must be true values before false ones",
    ),
    (
        {"x_active_mask": lambda: make(3, dtype=torch.bool)},
        r"'x_active_mask' must be of shape \(4\)",
    ),
    (
        {"performance_info": lambda: make(3, dtype=torch.int64)},
        r"'performance_info' must be of shape \(2\)",
    ),
    ({"elastic_info": lambda: make(3)}, "'elastic_info' must be left at None"),
    (
        {"x": lambda: make(4, 32, dtype=torch.int32, high=3)},
        "'scales' must be given when x is int32",
    ),
    (
        {"x": lambda: make(4, 5152, dtype=torch.int32, high=3)},
        "'x' must be of H up to 5120, but received 5152",
    ),
]


@pytest.mark.family("A2")
@pytest.mark.parametrize("change,message", WRONG)
def test_bad_input(change, message):
    given = dispatch(2)
    given.update({k: v() if callable(v) else v for k, v in change.items()})
    with pytest.raises(
        (RuntimeError, NotImplementedError),
        match=f"npu_moe_distribute_dispatch_v2: argument {message}",
    ):
        torch_npu.npu_moe_distribute_dispatch_v2(**given)


def test_shapes():
    outputs = torch_npu.npu_moe_distribute_dispatch_v2(
        **dispatch(2), tp_world_size=1, group_tp="any"
    )
    assert [tuple(o.shape) for o in outputs] == [(16, 32), (16,), (2048,), (2,), (4,), (1,), (0,)]
    assert outputs[3].tolist() == [8, 8] and outputs[4].tolist() == [4, 8, 12, 16]


def test_one_token():
    given = dispatch(2)
    given["x"], given["expert_ids"] = given["x"][:1], given["expert_ids"][:1]
    rows = torch_npu.npu_moe_distribute_dispatch_v2(**given)[0]
    assert torch.equal(rows.cpu(), given["x"].cpu().expand(4, 32))


@pytest.mark.parametrize("ranks,hidden", [(24, 32), (1, 8192)])
def test_any_number_of_nodes_and_wide_tokens(ranks, hidden):
    """In a mirrored group every rank sends the same, so that expert e gets its tokens `ranks` times."""
    x = make(4, hidden, dtype=torch.bfloat16)
    given = dispatch(2) | {
        "x": x, "group_ep": f"softnpu%mirror_{ranks}", "ep_world_size": ranks,
        "moe_expert_num": 2 * ranks,
    }  # fmt: skip
    rows, _, _, counts, *_ = torch_npu.npu_moe_distribute_dispatch_v2(**given)
    assert counts.tolist() == [4 * ranks, 4 * ranks]
    assert torch.equal(rows[: 8 * ranks], x.repeat(2 * ranks, 1))


@pytest.mark.parametrize(
    "soc,alg,hidden,refused",
    [
        ("Ascend910_9391", "hierarchy", 32, None),
        ("Ascend910_9391", "hierarchy", 48, "a multiple of 32 up to 7168"),
        ("Ascend910_9391", "hierarchy", 7200, "a multiple of 32 up to 7168"),
        ("Ascend910_9391", "", 992, r"in \[1024, 8192\]"),
        ("Ascend950", "", 1024, None),
        ("Ascend950", "", 992, r"in \[1024, 8192\]"),
    ],
)
def test_widths_after_a2(soc, alg, hidden, refused):
    """CANN's host code: with "hierarchy" any multiple of 32 up to 7168, else 1024 to 8192."""
    with as_chip(soc):
        given = dispatch(2) | {"x": make(4, hidden, dtype=torch.bfloat16), "comm_alg": alg}
        given |= {"group_ep": "softnpu%mirror_16", "ep_world_size": 16, "moe_expert_num": 32}
        if alg:
            given["expert_scales"] = make(4, 2)
        if refused:
            with pytest.raises(RuntimeError, match=f"'x' must be of H {refused}"):
                torch_npu.npu_moe_distribute_dispatch_v2(**given)
        else:
            rows = torch_npu.npu_moe_distribute_dispatch_v2(**given)[0]
            assert torch.equal(rows[: 8 * 16], given["x"].repeat(2 * 16, 1))


@pytest.mark.parametrize("soc,extra", [("Ascend910_9391", 2 * 4 * 16 * 2 * 2), ("Ascend950", 0)])
def test_scales_of_experts_after_a2(soc, extra):
    """CANN sends them along in every mode; for Ascend950 the counts have no room for sums inside a server."""
    with as_chip(soc):
        scales = make(4, 2)
        given = dispatch(2) | {"x": make(4, 1024, dtype=torch.bfloat16), "expert_scales": scales}
        given |= {"group_ep": "softnpu%mirror_16", "ep_world_size": 16, "moe_expert_num": 32}
        *_, recv, _, weights = torch_npu.npu_moe_distribute_dispatch_v2(**given)
    assert recv.numel() == 16 * 2 + extra
    assert torch.equal(weights.cpu(), scales.cpu().t().repeat(1, 16).flatten())


@pytest.mark.parametrize(
    "alg,refused", [("fullmesh_v2", None), ("ccu", None), ("hierarchy", "ccu")]
)
def test_algorithms_of_ascend950(alg, refused):
    with as_chip("Ascend950"):
        given = dispatch(2) | {"x": make(4, 1024, dtype=torch.bfloat16), "comm_alg": alg}
        if refused:
            with pytest.raises(RuntimeError, match=f"'fullmesh_v2' or '{refused}', but received"):
                torch_npu.npu_moe_distribute_dispatch_v2(**given)
        else:
            rows = torch_npu.npu_moe_distribute_dispatch_v2(**given)[0]
            assert torch.equal(rows, given["x"].repeat(4, 1))
