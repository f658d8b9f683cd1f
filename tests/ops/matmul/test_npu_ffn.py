"""npu_ffn against a loop over experts in fp64."""

import math

import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.matmul._packing import cut_scale, pack_scale
from tests.ops.support import assert_accurate, make

F16, BF16, F32, I8 = torch.float16, torch.bfloat16, torch.float32, torch.int8


def on_device(tensor):
    return tensor.to(make(1).device)


def gelu(x):
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


ACTIVATIONS = {
    "relu": lambda x: x.clamp(min=0),
    "gelu": gelu,
    "silu": lambda x: x / (1 + torch.exp(-x)),
    "fastgelu": lambda x: x * torch.exp(0.851 * (x - x.abs())) / (1 + torch.exp(-1.702 * x.abs())),
    "geglu": lambda x: x[..., : x.shape[-1] // 2] * gelu(x[..., x.shape[-1] // 2 :]),
    "reglu": lambda x: x[..., : x.shape[-1] // 2] * x[..., x.shape[-1] // 2 :].clamp(min=0),
    "swiglu": lambda x: (
        x[..., : x.shape[-1] // 2]
        * (x[..., x.shape[-1] // 2 :] / (1 + torch.exp(-x[..., x.shape[-1] // 2 :])))
    ),
}


def reference(
    x, weight1, weight2, activation, bias1=None, bias2=None, step=torch.float64, first=torch.float64
):
    """In fp64; `first` and `step` are what the values before and after the activation are rounded to."""
    x, weight1, weight2 = (t.cpu().double() for t in (x, weight1, weight2))
    hidden = x @ weight1 + (0 if bias1 is None else bias1.cpu().double())
    hidden = hidden.to(first).double()
    middle = ACTIVATIONS[activation](hidden).to(step).double()
    return middle @ weight2 + (0 if bias2 is None else bias2.cpu().double())


def by_expert(counts, network, *tensors):
    """`network` on the rows of each expert with its own slice of every other tensor."""
    x, *rest = tensors
    parts, start = [], 0
    for expert, count in enumerate(counts):
        own = [None if t is None else t[expert] for t in rest]
        parts.append(network(x[start : start + count], *own))
        start += count
    return torch.cat(parts)


@pytest.mark.family("A2")
@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "fastgelu"])
@pytest.mark.parametrize("dtype", [F16, BF16])
@pytest.mark.parametrize("shape", [(5, 12), (2, 3, 12), (1, 12), (0, 12)])
def test_plain(activation, dtype, shape):
    x = make(*shape, dtype=dtype)
    weight1, weight2 = make(12, 20, dtype=dtype), make(20, 12, dtype=dtype)
    bias_dtype = F32 if dtype == BF16 else F16
    bias1, bias2 = make(20, dtype=bias_dtype), make(12, dtype=bias_dtype)
    y = torch_npu.npu_ffn(x, weight1, weight2, activation, bias1=bias1, bias2=bias2)
    want = reference(x, weight1, weight2, activation, bias1, bias2)
    plain = reference(x, weight1, weight2, activation, bias1, bias2, step=dtype)
    assert y.dtype == dtype and y.shape == shape
    assert_accurate(y, want, plain.to(dtype))


@pytest.mark.parametrize("dtype", [F16, BF16])
@pytest.mark.parametrize("precise,family", [(0, "A2"), (1, "A2"), (0, "310P")])
def test_values_between_the_products_are_rounded(dtype, precise, family):
    """ffn.cpp: what goes into the second product has the dtype of x; a fast first product of float16 has it, too."""
    if dtype == BF16 and (precise or family == "310P"):
        pytest.skip("float16 alone")
    x, weight1 = make(64, 32, dtype=dtype), make(32, 2, dtype=dtype)
    weight2 = torch.ones(2, 32, dtype=dtype).npu()
    with on(family):
        y = torch_npu.npu_ffn(x, weight1, weight2, "silu", inner_precise=precise)
    hidden = x.cpu().float() @ weight1.cpu().float()
    if precise or family == "310P":
        hidden = hidden.to(dtype).float()
    middle = (hidden * torch.sigmoid(hidden)).to(dtype).float()
    assert (
        y.cpu() != middle.sum(1, keepdim=True).to(dtype)
    ).float().mean() < 0.05  # sums of fp32 may differ
    exact = reference(x, weight1, weight2, "silu").to(dtype)
    assert (y.cpu() != exact).any()


@pytest.mark.parametrize("activation", ["geglu", "swiglu", "reglu"])
def test_gated(activation):
    x, weight1, weight2 = make(5, 8, dtype=F16), make(8, 24, dtype=F16), make(12, 8, dtype=F16)
    bias1 = make(24, dtype=F16)
    y = torch_npu.npu_ffn(x, weight1, weight2, activation, bias1=bias1, inner_precise=1)
    want = reference(x, weight1, weight2, activation, bias1)
    plain = reference(x, weight1, weight2, activation, bias1, step=F16, first=F16)
    assert_accurate(y, want, plain.half())


@pytest.mark.parametrize("counts", [[3, 2, 4], [0, 9, 0], [9, 0, 0], [0, 0, 9], [1, 0, 8]], ids=str)
@pytest.mark.parametrize("as_index", [False, True])
def test_experts(counts, as_index):
    x = make(9, 8, dtype=F16)
    weight1, weight2 = make(3, 8, 16, dtype=F16), make(3, 16, 8, dtype=F16)
    bias1, bias2 = make(3, 16, dtype=F16), make(3, 8, dtype=F16)
    ends = [sum(counts[: i + 1]) for i in range(3)]
    tokens = {"expert_tokens_index": ends} if as_index else {"expert_tokens": counts}
    y = torch_npu.npu_ffn(x, weight1, weight2, "gelu", bias1=bias1, bias2=bias2, **tokens)
    want = by_expert(
        counts,
        lambda x, w1, w2, b1, b2: reference(x, w1, w2, "gelu", b1, b2),
        x.cpu(), weight1.cpu(), weight2.cpu(), bias1.cpu(), bias2.cpu(),
    )  # fmt: skip
    assert_accurate(y, want, want.half())


def test_experts_of_a_three_dimensional_input():
    x, weight1, weight2 = (
        make(2, 3, 8, dtype=BF16),
        make(2, 8, 4, dtype=BF16),
        make(2, 4, 8, dtype=BF16),
    )
    y = torch_npu.npu_ffn(x, weight1, weight2, "relu", expert_tokens=[5, 1])
    want = by_expert(
        [5, 1],
        lambda x, w1, w2: reference(x, w1, w2, "relu"),
        x.cpu().reshape(6, 8), weight1.cpu(), weight2.cpu(),
    )  # fmt: skip
    assert y.shape == (2, 3, 8)
    assert_accurate(y, want.reshape(2, 3, 8), want.reshape(2, 3, 8).bfloat16())


def quantized_reference(x, w1, w2, b1, b2, d1, d2, scale, offset, activation):
    hidden = ACTIVATIONS[activation]((x.long() @ w1.long() + b1).double() * d1)
    middle = (hidden * scale + offset).round().clamp(-128, 127).long()
    return (middle @ w2.long() + b2).double() * d2


@pytest.mark.parametrize("result,deq", [(None, "packed"), (F16, "float32"), (BF16, "bfloat16")])
@pytest.mark.parametrize("by_column", [False, True])
@pytest.mark.parametrize("experts", [False, True])
def test_quantized(result, deq, by_column, experts):
    if by_column and deq == "float32":
        deq = "packed"
    lead = (2,) if experts else ()
    # relu and powers of two keep the middle exact, so that no int8 can fall on the other side of a half
    x = make(6, 8, dtype=I8, low=-9, high=9)
    w1, w2 = (
        make(*lead, 8, 16, dtype=I8, low=-9, high=9),
        make(*lead, 16, 8, dtype=I8, low=-9, high=9),
    )
    b1 = make(*lead, 16, dtype=torch.int32, low=-99, high=99)
    b2 = make(*lead, 8, dtype=torch.int32, low=-99, high=99)
    d1, d2 = torch.full((*lead, 16), 0.25), make(*lead, 8).bfloat16().float().cpu()
    scale = torch.full((*lead, 16) if by_column else (lead or (1,)), 1.0)
    offset = torch.full(lead or (1,), 3.0)
    kinds = {
        "packed": lambda t: pack_scale(t.flatten()).reshape(t.shape),
        "float32": lambda t: t,
        "bfloat16": lambda t: t.bfloat16(),
    }
    y = torch_npu.npu_ffn(
        x, w1, w2, "relu",
        bias1=b1, bias2=b2, scale=on_device(scale), offset=on_device(offset),
        deq_scale1=on_device(kinds[deq](d1)), deq_scale2=on_device(kinds[deq](d2)),
        expert_tokens=[4, 2] if experts else None, output_dtype=result,
    )  # fmt: skip
    d2 = cut_scale(d2) if deq == "packed" else d2.double()
    tensors = (x, w1, w2, b1, b2, d1, d2, scale, offset)
    tensors = [t.cpu() for t in tensors]
    network = lambda *t: quantized_reference(*t, "relu")  # noqa: E731
    want = by_expert([4, 2], network, *tensors) if experts else network(*tensors)
    dtype = result or F16
    assert y.dtype == dtype
    assert_accurate(y, want, want.to(dtype))


@pytest.mark.parametrize("dtype", [F16, BF16])
@pytest.mark.parametrize("experts", [False, True])
def test_weight_quantized(dtype, experts):
    lead = (2,) if experts else ()
    x = make(6, 8, dtype=dtype)
    w1, w2 = (
        make(*lead, 8, 16, dtype=I8, low=-9, high=9),
        make(*lead, 16, 8, dtype=I8, low=-9, high=9),
    )
    s1, s2 = make(*lead, 16, dtype=dtype, seed=1), make(*lead, 8, dtype=dtype, seed=2)
    o1 = make(*lead, 16, dtype=dtype, seed=3)
    o2 = make(*lead, 8, dtype=dtype, seed=4)
    b2 = make(*lead, 8, dtype=F32 if dtype == BF16 else F16)
    y = torch_npu.npu_ffn(
        x, w1, w2, "silu",
        antiquant_scale1=s1, antiquant_scale2=s2, antiquant_offset1=o1, antiquant_offset2=o2,
        bias2=b2, expert_tokens_index=[2, 6] if experts else None, inner_precise=1,
    )  # fmt: skip

    def network(x, w1, w2, s1, s2, o1, o2, b2, kind=torch.float64):
        w1 = (w1.to(kind) + (0 if o1 is None else o1.to(kind))) * s1.to(kind)
        w2 = (w2.to(kind) + (0 if o2 is None else o2.to(kind))) * s2.to(kind)
        return reference(x, w1, w2, "silu", None, b2)

    def in_its_dtype(*tensors):
        return network(*tensors, kind=dtype).to(dtype)

    tensors = [None if t is None else t.cpu() for t in (x, w1, w2, s1, s2, o1, o2, b2)]
    want = by_expert([2, 4], network, *tensors) if experts else network(*tensors)
    plain = by_expert([2, 4], in_its_dtype, *tensors) if experts else in_its_dtype(*tensors)
    assert y.dtype == dtype
    assert_accurate(y, want, plain)


# --- what it refuses ------------------------------------------------------------------------------------


def call(activation="relu", **changes):
    arguments = {"x": make(4, 8, dtype=F16), "weight1": make(8, 16, dtype=F16)}
    arguments |= {"weight2": make(16, 8, dtype=F16)}
    return torch_npu.npu_ffn(activation=activation, **arguments | changes)


def experts(**changes):
    weights = {"weight1": make(2, 8, 16, dtype=F16), "weight2": make(2, 16, 8, dtype=F16)}
    return weights | changes


REFUSED = [
    (lambda: {"x": make(4, 8)}, "npu_ffn: argument 'x' must be of dtype .*float32"),
    (lambda: {"activation": "tanh"}, "'activation' must be 'fastgelu', .*but received 'tanh'"),
    (lambda: {"activation": "swiglu"}, r"'weight2' must be of shape \(8, \*\).*\(16, 8\)"),
    (
        lambda: {"activation": "swiglu", "weight2": make(8, 8, dtype=F16)},
        "'inner_precise' must be 1 for 'swiglu', but received None",
    ),
    (
        lambda: {"weight2": make(16, 9, dtype=F16)},
        r"'weight2' must be of shape \(16, 8\).*\(16, 9\)",
    ),
    (lambda: {"inner_precise": 2}, "'inner_precise' must be None, 0 or 1, but received 2"),
    (lambda: {"bias1": make(16)}, "'bias1' must be of dtype torch.float16.*float32"),
    (lambda: {"scale": make(1)}, "'scale' must be None in the plain form"),
    (lambda: {"antiquant_scale1": make(16)}, "'antiquant_scale1' must be None in the plain form"),
    (
        lambda: experts(expert_tokens=[1, 2]),
        "'expert_tokens' .*the sum is 4, the rows of 'x'.*received 3",
    ),
    (lambda: experts(expert_tokens=[5, -1]), "'expert_tokens' must be non-negative.*-1 at index 1"),
    (lambda: experts(expert_tokens_index=[3, 2]), "'expert_tokens_index' must be .*2 at index 1"),
    (
        lambda: experts(expert_tokens_index=[3, 5]),
        "'expert_tokens_index' .*the last value is 4.*received 5",
    ),
    (lambda: experts(expert_tokens=[4]), "'expert_tokens' must be of 2 values, the experts.*1"),
    (
        lambda: experts(expert_tokens=[2, 2], expert_tokens_index=[2, 4]),
        "'expert_tokens_index' must be None when 'expert_tokens' is given",
    ),
    (
        lambda: {
            "weight1": make(8, 16, dtype=I8, high=3),
            "weight2": make(16, 8, dtype=I8, high=3),
        },
        "'antiquant_scale1' must be given in the weight-quantized form",
    ),
]


@pytest.mark.parametrize("arguments,message", REFUSED, ids=range(len(REFUSED)))
def test_refused(arguments, message):
    with pytest.raises(RuntimeError, match=message):
        call(**arguments())


def quantized_call(**changes):
    arguments = {
        "x": make(4, 8, dtype=I8, high=3),
        "weight1": make(8, 16, dtype=I8, high=3),
        "weight2": make(16, 8, dtype=I8, high=3),
        "scale": make(1),
        "offset": make(1),
        "deq_scale1": make(16),
        "deq_scale2": make(8),
    }
    return call(**arguments | changes)


def test_quantized_parameters():
    quantized_call()
    with pytest.raises(RuntimeError, match="'deq_scale2' must be given in the quantized form"):
        quantized_call(deq_scale2=None)
    with pytest.raises(RuntimeError, match="'offset' must be given in the quantized form"):
        quantized_call(offset=None)
    with pytest.raises(RuntimeError, match=r"'scale' must be of shape \(1,\) or \(16,\).*\(3,\)"):
        quantized_call(scale=make(3))
    with pytest.raises(RuntimeError, match="'deq_scale1' must be of dtype torch.bfloat16"):
        quantized_call(output_dtype=BF16)
    with pytest.raises(
        RuntimeError, match="'output_dtype' must be None, torch.float16 or torch.bfloat16"
    ):
        quantized_call(output_dtype=F32)


def test_weights_with_scales_need_offsets():
    weights = {"weight1": make(8, 16, dtype=I8, high=3), "weight2": make(16, 8, dtype=I8, high=3)}
    scales = {f"antiquant_scale{n}": make(size, dtype=F16) for n, size in ((1, 16), (2, 8))}
    with pytest.raises(RuntimeError, match="'antiquant_offset1' must be given in the weight-quan"):
        call(**weights, **scales)


def test_capitals_and_another_width_behind_a_gate():
    x, w1, w2 = make(3, 8, dtype=F16), make(8, 12, dtype=F16), make(6, 5, dtype=F16)
    y = torch_npu.npu_ffn(x, w1, w2, "SwiGLU", inner_precise=1)
    hidden = x.cpu().double() @ w1.cpu().double()
    left, right = hidden.chunk(2, -1)
    want = left * (right / (1 + (-right).exp())) @ w2.cpu().double()
    torch.testing.assert_close(y.cpu().double(), want, rtol=2e-3, atol=1e-3)
