"""What npu_grouped_matmul refuses, and how it says so."""

import pytest
import torch

import torch_npu
from tests.ops.families import as_chip
from tests.ops.support import make

F16, BF16, F32, I8, I32 = torch.float16, torch.bfloat16, torch.float32, torch.int8, torch.int32


def longs(values):
    return torch.tensor(values, dtype=torch.int64).to(make(1).device)


def call(x=None, weight=None, **changes):
    x = [make(6, 8)] if x is None else x
    weight = [make(3, 8, 4)] if weight is None else weight
    options = {"group_list": longs([1, 3, 6]), "split_item": 3, "group_type": 0}
    return torch_npu.npu_grouped_matmul(x, weight, **options | changes)


def int8s(**changes):
    return {
        "x": [make(6, 8, dtype=I8, high=3)],
        "weight": [make(3, 8, 4, dtype=I8, high=3)],
    } | changes


def halves(**changes):
    return {"x": [make(6, 8, dtype=F16)], "weight": [make(3, 8, 4, dtype=I8, high=3)]} | changes


def depths(**changes):
    return {
        "group_type": 2, "x": [make(8, 6).t()], "weight": [make(8, 4)], "group_list": longs([2, 8])
    } | changes  # fmt: skip


REFUSED = [
    # group lists
    (lambda: {"group_list": longs([1, 3, 7])}, "'group_list' .*cover 6 rows of 'x', but received 7 by index 2"),
    (lambda: {"group_list": longs([1, 4, 3])}, "'group_list' must be .*non-decreasing.*3 at index 2, after 4"),
    (lambda: {"group_list": longs([-1, 4, 6])}, "'group_list' must be non-negative.*-1 at index 0"),
    (
        lambda: {"group_list": longs([4, -1, 3]), "group_list_type": 1},
        "'group_list' must be non-negative, but received -1 at index 1",
    ),
    (
        lambda: {"group_list": longs([4, 4, 3]), "group_list_type": 1},
        "'group_list' .*cover 6 rows of 'x', but received 8 by index 1",
    ),
    (lambda: {"group_list": longs([3, 6])}, r"'group_list' must be of shape \(3\).*\(2,\)"),
    (lambda: {"group_list": None}, "'group_list' must be given where 'x' is one tensor"),
    (lambda: {"group_list": longs([1, 3, 6]).int()}, "'group_list' must be of dtype torch.int64.*int32"),
    (lambda: {"group_list_type": 3}, "'group_list_type' must be 0, 1 or 2, but received 3"),
    (
        lambda: depths(group_list=longs([[0, 4], [1, 4]]), group_list_type=2),
        "'group_list_type' must be 0 or 1 unless rows are grouped, but received 2",
    ),
    (
        lambda: int8s(group_list=longs([[0, 2], [3, 2], [2, 2]]), group_list_type=2, output_dtype=I32),
        "'group_list' must be of groups from 0 to 2, but received 3 at index 1",
    ),
    (
        lambda: {
            "x": [make(2, 8), make(4, 8)], "weight": [make(8, 4), make(8, 4)], "group_list": longs([3, 6])
        },
        r"'group_list' must be of the sizes \[2, 4\] .*received 3 at index 0",
    ),
    # scenes
    (lambda: {"group_type": None}, "'group_type' must be -1, 0 or 2, but received None .*Requires manual passing group_type"),
    (lambda: {"group_type": 1}, "'group_type' must be -1, 0 or 2, but received 1 .*The group type must be"),
    (lambda: {"split_item": 4}, "'split_item' must be 0, 1, 2 or 3, but received 4"),
    (lambda: {"split_item": 0}, "'split_item' must be 2 or 3 for group_type 0, but received 0"),
    (lambda: {"group_type": -1, "split_item": 3}, "'split_item' must be 0 or 1 for group_type -1"),
    (
        lambda: {"group_type": -1, "split_item": 0, "weight": [make(8, 4)]},
        "'group_list' must be None for group_type -1",
    ),
    (
        lambda: depths(group_list=longs([2, 9])),
        "'group_list' .*cover 8 columns of 'x', but received 9 by index 1",
    ),
    (lambda: depths(weight=[make(7, 4)]), "'weight' must be of 8 rows in all, K of 'x'.*7"),
    (
        lambda: depths(x=[make(8, 6, dtype=I8).t()], weight=[make(8, 4, dtype=I8)]),
        "'group_type' must be -1 or 0 in the quantized",
    ),
    # layouts
    (lambda: depths(x=[make(6, 8)]), r"'x' must be the transpose of a contiguous matrix, but received \(8, 1\)"),
    (lambda: depths(weight=[make(4, 8).t()]), r"'weight' must be contiguous, not transposed, for group_type 2.*\(1, 8\)"),
    (lambda: {"x": [make(8, 6).t()]}, r"'x' must be contiguous, not a transposed view, for group_type 0, but received \(1, 6\)"),
    (
        lambda: {"weight": [make(8, 4), make(4, 8).t(), make(8, 4)]},
        r"'weight' must be contiguous or transposed, all tensors alike, but received \(1, 8\)",
    ),
    (
        lambda: {"x": [make(1, 65536)], "weight": [make(1, 65536, 2)], "group_list": longs([1])},
        "'x' must be of a K up to 65535, but received 65536",
    ),
    (
        lambda: {"x": [make(1, 2)], "weight": [make(1, 2, 65536)], "group_list": longs([1])},
        "'weight' must be of an N up to 65535, or transposed, but received 65536",
    ),
    # lists and shapes
    (lambda: {"x": []}, "npu_grouped_matmul: argument 'x' must be a list of 1 to 128 tensors.*0"),
    (lambda: {"weight": [make(3, 9, 4)]}, "'weight' must be of K 8, as 'x', but received 9 at index 0"),
    (
        lambda: {"weight": [make(8, 4), make(8, 4), make(8, 5)]},
        r"'weight' must be of the same N \(4\), but received 5 at index 2",
    ),
    (lambda: {"x": [make(2, 6, 8)]}, "'x' must be a tensor of 2 dimensions"),
    (lambda: {"weight": [make(3, 8, 4, dtype=F16)]}, "'weight' must be of dtype torch.float32.*float16"),
    (lambda: {"x": [make(6, 8, dtype=torch.float64)]}, "'x' must be of dtype .*float64"),
    (lambda: {"bias": [make(4)]}, r"'bias' must be of shape \(3, 4\).*\(4,\)"),
    (lambda: {"bias": [make(3, 4), make(3, 4)]}, "'bias' must be a list of 1 tensors.*2"),
    (lambda: {"output_dtype": F16}, "'output_dtype' must be None or torch.float32.*float16"),
    # quantized forms
    (lambda: {"scale": [make(3, 4)]}, "'scale' must be None in the plain form"),
    (lambda: {"act_type": 1}, "'act_type' must be 0 unless int8 gives float16 or bfloat16, but received 1"),
    (lambda: int8s(act_type=1, output_dtype=I32), "'act_type' must be 0 unless int8 gives"),
    (lambda: {"act_type": 3}, "'act_type' must be 0, 1, 2, 4, 5 or None, but received 3"),
    (lambda: {"tuning_config": [7]}, "'tuning_config' must be from 0 to 6, the rows of 'x', but received 7"),
    (lambda: {"per_token_scale": [make(6)]}, "'per_token_scale' must be None in the plain form"),
    (lambda: int8s(), "'scale' must be given for torch.int8 results"),
    (lambda: int8s(scale=[make(3, 4)]), "'scale' must be of dtype torch.int64 or torch.uint64.*float32"),
    (
        lambda: int8s(scale=[make(3, 5)], output_dtype=F16),
        r"'scale' must be of shape \(3, 4\), but received \(3, 5\)",
    ),
    (
        lambda: int8s(scale=[make(3, 4)], output_dtype=F16, per_token_scale=[make(5)]),
        r"'per_token_scale' must be of shape \(6\), but received \(5,\)",
    ),
    (
        lambda: int8s(scale=[make(3, 1)], output_dtype=F16),
        r"'scale' must be of shape \(3, 4\), but received \(3, 1\)",
    ),
    (
        lambda: int8s(scale=[make(3, 4)], output_dtype=F16, bias=[make(3, 4, dtype=BF16)]),
        "'bias' must be of dtype torch.int32, but received torch.bfloat16",
    ),
    (
        lambda: int8s(
            x=[make(2, 8, dtype=I8), make(4, 8, dtype=I8)], weight=[make(8, 4, dtype=I8)] * 2,
            scale=[make(4)] * 2, output_dtype=F16, per_token_scale=[make(2), make(4)], group_list=None,
        ),
        "'per_token_scale' must be None unless 'x' is one tensor",
    ),
    (
        lambda: halves(antiquant_scale=[make(3, 4, dtype=F16)]),
        "'antiquant_offset' must be given in the weight-quantized form",
    ),
    (lambda: halves(), "'antiquant_scale' must be given in the weight-quantized form"),
    (
        lambda: halves(
            antiquant_scale=[make(3, 2, 4, dtype=F16)], antiquant_offset=[make(3, 4, dtype=F16)]
        ),
        r"'antiquant_scale' must be of shape \(3, 4\), but received \(3, 2, 4\)",
    ),
    (
        lambda: halves(
            weight=[make(3, 8, 1, dtype=I32, high=9)], antiquant_scale=[make(3, 3, 8, dtype=F16)]
        ),
        r"'antiquant_scale' must be of groups that divide K \(8\), but received 3",
    ),
]  # fmt: skip


@pytest.mark.family("A2")
@pytest.mark.parametrize("arguments,message", REFUSED, ids=range(len(REFUSED)))
def test_refused(arguments, message):
    with pytest.raises(RuntimeError, match=message):
        call(**arguments())


@pytest.mark.parametrize(
    "name", ["offset", "activation_input", "activation_quant_scale", "activation_quant_offset"]
)
def test_reserved(name):
    with pytest.raises(NotImplementedError, match=f"'{name}' must be left at None"):
        call(**{name: [make(4)]})


@pytest.mark.parametrize("name", ["scale_dtype", "per_token_scale_dtype"])
def test_unsupported_codes(name):
    with pytest.raises(NotImplementedError, match=f"'{name}' must be None on this chip"):
        call(**{name: 293})


@pytest.mark.family("A2")
@pytest.mark.parametrize("name", ["x_dtype", "weight_dtype"])
def test_codes_need_the_950(name):
    message = f"'{name}' must be None, or hifloat8 on Ascend950, but received hifloat8"
    with pytest.raises(NotImplementedError, match=message):
        call(**{name: 290})


def test_older_chip():
    x, weight = [make(6, 8, dtype=F16)], [make(3, 8, 4, dtype=F16)]
    with as_chip("Ascend310P3"):
        with pytest.raises(RuntimeError, match="'x' must be of dtype torch.float16.*float32"):
            call()
        with pytest.raises(
            RuntimeError, match="'weight' must be of an N that is a multiple of 16.*4"
        ):
            call(x, weight)
        with pytest.raises(RuntimeError, match="'group_type' must be 0 on this chip.*-1"):
            weight = [make(8, 16, dtype=F16)]
            call(x, weight, group_list=None, split_item=0, group_type=-1)
        with pytest.raises(RuntimeError, match="'weight' must be a list of one tensor.*3"):
            call(x, weight * 3)


E4M3 = torch.float8_e4m3fn


def eights(**changes):
    return {
        "x": [make(6, 8).to(E4M3)], "weight": [make(3, 8, 4).to(E4M3)], "scale": [make(3, 4)], "output_dtype": F32,
    } | changes  # fmt: skip


@pytest.mark.parametrize(
    "arguments,message",
    [
        (lambda: eights(bias=[make(3, 4)]), "'bias' must be None for 8-bit floats"),
        (lambda: eights(scale=None), "'scale' must be given for 8-bit floats"),
        (
            lambda: eights(scale=[make(3, 4).long()], per_token_scale=[make(6)]),
            "'scale' must be of dtype torch.float32, but received torch.int64",
        ),
        (
            lambda: eights(per_token_scale=[make(5)]),
            r"'per_token_scale' must be of shape \(6,\), \(3, 1\) or \(3,\), but received \(5,\)",
        ),
        (
            lambda: eights(
                group_type=-1, split_item=0, weight=[make(8, 4).to(E4M3)], group_list=None
            ),
            "'group_type' must be 0 or 2, but received -1",
        ),
        (
            lambda: int8s(scale=[make(3, 4)], output_dtype=F16, bias=[make(3, 4, dtype=BF16)]),
            "'bias' must be of dtype torch.int32, torch.float16 or torch.float32",
        ),
    ],
    ids=range(6),
)
def test_refused_on_950(arguments, message):
    with as_chip("Ascend950"), pytest.raises(RuntimeError, match=message):
        call(**arguments())


def half(*shape):
    return make(*shape, dtype=F16)


def listed(x=None, weight=None, **changes):
    x = [half(6, 8)] if x is None else x
    weight = [half(8, 4), half(8, 4)] if weight is None else weight
    return torch_npu.npu_grouped_matmul(
        x, weight, **{"group_list": [2, 6], "split_item": 3} | changes
    )


LIST_REFUSED = [
    (
        lambda: {"group_list": [2, 7]},
        "'group_list' .*cover 6 rows of 'x', but received 7 by index 1",
    ),
    (lambda: {"group_list": [2, 5]}, "'group_list' .*cover 6 rows of 'x', but received 5"),
    (lambda: {"group_list": [7, 6]}, "'group_list' .*received 7 by index 0"),
    (lambda: {"group_list": [2, 4, 6]}, "'group_list' must be of 2 values, but received 3"),
    (lambda: {"group_list": [6], "weight": [half(8, 4)]}, "'split_item' must be 0 or 1 for one weight.*3"),
    (lambda: {"x": [make(6, 8)], "weight": [make(8, 4)] * 2}, "'x' must be of dtype .*received torch.float32"),
    (
        lambda: {"x": [half(2, 8), half(4, 8)], "split_item": 0},
        "'x' must be one tensor where a list cuts it into separate results, but received 2",
    ),
    (
        lambda: {"group_list": [6], "weight": [half(4, 8).t()], "split_item": 0},
        "'weight' must be contiguous, not transposed, where every x has its own",
    ),
    (lambda: {"group_list": []}, "'group_list' must be given where 'x' is one tensor"),
    (
        lambda: {"weight": [half(3, 8, 4)], "group_list": [6]},
        "'weight' must be a tensor of 2 dimensions",
    ),
    (
        lambda: {"weight": [half(8, 4), half(8, 5)]},
        r"'weight' must be of the same N \(4\).*5 at index 1",
    ),
]  # fmt: skip


@pytest.mark.family("A2")
@pytest.mark.parametrize("arguments,message", LIST_REFUSED, ids=range(len(LIST_REFUSED)))
def test_list_of_ints_refused(arguments, message):
    with pytest.raises(RuntimeError, match=message):
        listed(**arguments())


@pytest.mark.parametrize("name,value", [("group_list_type", 1), ("act_type", 1)])
def test_list_of_ints_reserves(name, value):
    with pytest.raises(NotImplementedError, match=f"'{name}' must be left at"):
        listed(**{name: value})
    with pytest.raises(NotImplementedError, match="'per_token_scale' must be left at None"):
        listed(per_token_scale=[make(6)])


@pytest.mark.parametrize("group_type", [-1, 0, 2])
def test_list_of_ints_says_all_without_group_type(group_type):
    for got, want in zip(listed(group_type=group_type), listed(), strict=True):
        assert torch.equal(got.cpu(), want.cpu())
    with pytest.raises(RuntimeError, match="'group_type' must be None, -1, 0, 1 or 2.*7"):
        listed(group_type=7)
