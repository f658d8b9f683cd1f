"""npu_ffn: two products with an activation between, for one network or experts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from softnpu import chips
from torch_npu.ops import _check as must
from torch_npu.ops._math import wide
from torch_npu.ops._registry import Sample, npu_op
from torch_npu.ops._shared._gemm import antiquantize, int_product, product
from torch_npu.ops._shared._rounding import saturate
from torch_npu.ops._shared._scales import PACKED, scale_of
from torch_npu.ops._shared._sigmoid import FAST_GELU, swish

_PLAIN: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "fastgelu": lambda x: swish(x, FAST_GELU),
    "gelu": torch.nn.functional.gelu,
    "relu": torch.relu,
    "silu": swish,
}
#: the gated forms: the left half times the activation of the right half
_GATED = {"geglu": _PLAIN["gelu"], "swiglu": _PLAIN["silu"], "reglu": _PLAIN["relu"]}

_KINDS = must.one_of((*_PLAIN, *_GATED), quoted=True)
_EXPERTS, _LIMIT = 256, 65536


def _activate(x: torch.Tensor, activation: str) -> torch.Tensor:
    kind = activation.lower()
    if kind in _PLAIN:
        return _PLAIN[kind](x)
    left, right = x.chunk(2, -1)
    return left * _GATED[kind](right)


def _counts(tokens: Sequence[int] | None, index: Sequence[int] | None) -> list[int] | None:
    """Tokens of each expert, from counts or from where each expert's tokens end."""
    if tokens is not None:
        return list(tokens)
    if index is None:
        return None
    return [end - start for start, end in zip([0, *index], index, strict=False)]


def _check_experts(x, weight1, tokens, index):
    both = tokens is not None and index is not None
    must.hold(not both, "expert_tokens_index", "None when 'expert_tokens' is given", index)
    name = "expert_tokens" if tokens is not None else "expert_tokens_index"
    values = tokens if tokens is not None else index
    if values is None:
        return
    must.hold(len(values) <= _EXPERTS, name, f"of at most {_EXPERTS} experts", len(values))
    experts = weight1.shape[0]
    must.hold(len(values) == experts, name, f"of {experts} values, the experts", len(values))
    counts = _counts(tokens, index) or []
    for place, count in enumerate(counts):
        word = "non-negative" if tokens is not None else "non-negative and non-decreasing"
        must.hold(count >= 0, name, word, f"{values[place]} at index {place}")
    rows = x.numel() // x.shape[-1] if x.shape[-1] else 0
    total = sum(counts)
    word = "the sum" if tokens is not None else "the last value"
    must.hold(total == rows, name, f"such that {word} is {rows}, the rows of 'x'", total)


def _check_sizes(x, weight1, weight2, activation, experts):
    must.ndim("x", x, 2, 8)
    must.ndim("weight1", weight1, 3 if experts else 2)
    lead = tuple(weight1.shape[:-2])
    k1, n1 = x.shape[-1], weight1.shape[-1]
    must.shape("weight1", weight1, (*lead, k1, None))
    gated = activation in _GATED
    must.hold(not gated or n1 % 2 == 0, "weight1", f"of an even N1 for '{activation}'", n1)
    k2 = n1 // 2 if gated else n1
    must.shape("weight2", weight2, (*lead, k2, None if gated else k1))
    must.hold(max(k1, k2) < _LIMIT, "weight1", f"of K1 and K2 below {_LIMIT}", (k1, k2))


def _check_forms(x, weights, biases, quant, antiquant, output_dtype):
    """Types and shapes of each form's parameters; `quant`, `antiquant` map names to tensors."""
    integer = x.dtype == torch.int8
    weight1 = weights["weight1"]
    must.dtype("weight1", weight1, *((torch.int8,) if integer else (x.dtype, torch.int8)))
    must.same_dtype("weight2", weights["weight2"], "weight1", weight1)
    restored = not integer and weight1.dtype == torch.int8
    form = "quantized" if integer else ("weight-quantized" if restored else "plain")
    for table, used in ((quant, integer), (antiquant, restored)):
        for name, value in table.items():
            must.hold(used or value is None, name, f"None in the {form} form", "a tensor")
    bias_type = (
        torch.int32 if integer else (torch.float32 if x.dtype == torch.bfloat16 else x.dtype)
    )
    for number, (name, bias) in enumerate(biases.items(), 1):
        weight = weights[f"weight{number}"]
        columns = (*weight.shape[:-2], weight.shape[-1])
        must.dtype(name, bias, bias_type)
        must.shape(name, bias, columns)
        if integer:
            must.present(f"deq_scale{number}", quant[f"deq_scale{number}"], "in the quantized form")
            must.shape(f"deq_scale{number}", quant[f"deq_scale{number}"], columns)
        if restored:
            scale, offset = f"antiquant_scale{number}", f"antiquant_offset{number}"
            for part in (scale, offset):
                must.present(part, antiquant[part], "in the weight-quantized form")
                must.same_dtype(part, antiquant[part], "x", x)
                must.shape(part, antiquant[part], columns)
    if integer:
        _check_quantized(weights["weight1"], quant, output_dtype)


def _check_quantized(weight1, quant, output_dtype):
    must.choice("output_dtype", output_dtype, (None, torch.float16, torch.bfloat16))
    lead, columns = tuple(weight1.shape[:-2]), weight1.shape[-1]
    scale, offset = quant["scale"], quant["offset"]
    must.present("scale", scale, "in the quantized form")
    must.present("offset", offset, "in the quantized form")
    must.dtype("scale", scale, torch.float32)
    one = lead or (1,)
    shapes = [one, (*lead, columns)]
    fits = tuple(scale.shape) in shapes
    must.hold(fits, "scale", "of shape " + must.one_of(shapes), tuple(scale.shape))
    must.dtype("offset", offset, torch.float32)
    must.shape("offset", offset, one)
    by_column = tuple(scale.shape) == shapes[1] and shapes[0] != shapes[1]
    floats = () if by_column else (torch.float32,)
    allowed = (torch.bfloat16,) if output_dtype == torch.bfloat16 else (*PACKED, *floats)
    must.dtype("deq_scale1", quant["deq_scale1"], *allowed)
    must.same_dtype("deq_scale2", quant["deq_scale2"], "deq_scale1", quant["deq_scale1"])


def _network(x, activation, p, fast):
    """One network on (tokens, K1); `p` holds its parameters by name, None where not given.

    What goes into the second product has the dtype of `x`. In the fast form, on 310P and with int8 weights the first
    product of float16 is float16, too (ffn.cpp).
    """

    def plain(values, number):
        weight, scale = p[f"weight{number}"], p[f"antiquant_scale{number}"]
        if scale is not None:
            weight = antiquantize(weight, scale, p[f"antiquant_offset{number}"])
        y, bias = product(values, weight), p[f"bias{number}"]
        return y if bias is None else y + bias

    def quantized(values, number):
        y, bias = int_product(values, p[f"weight{number}"]), p[f"bias{number}"]
        return (y if bias is None else y + bias).float() * scale_of(p[f"deq_scale{number}"])

    if x.dtype == torch.int8:
        # scales of float16 results go through the cube's output stage, which leaves float16 behind
        step = torch.float32 if p["deq_scale1"].dtype == torch.bfloat16 else torch.float16
        hidden = _activate(quantized(x, 1).to(step).float(), activation).to(step)
        hidden = hidden * p["scale"].to(step)
        return quantized(saturate(hidden + p["offset"].to(step), torch.int8), 2)
    hidden = plain(wide(x), 1)
    old = chips.current().family == "310P"
    if x.dtype == torch.float16 and (fast or old or p["antiquant_scale1"] is not None):
        hidden = wide(hidden.to(x.dtype))
    return plain(wide(_activate(hidden, activation).to(x.dtype)), 2)


@npu_op(
    "npu_ffn(Tensor x, Tensor weight1, Tensor weight2, str activation, *, int[]? expert_tokens=None, "
    "int[]? expert_tokens_index=None, Tensor? bias1=None, Tensor? bias2=None, Tensor? scale=None, "
    "Tensor? offset=None, Tensor? deq_scale1=None, Tensor? deq_scale2=None, Tensor? antiquant_scale1=None, "
    "Tensor? antiquant_scale2=None, Tensor? antiquant_offset1=None, Tensor? antiquant_offset2=None, "
    "int? inner_precise=None, ScalarType? output_dtype=None) -> Tensor",
    ge="FFN",
    product=True,
)
def npu_ffn(
    x,
    weight1,
    weight2,
    activation,
    expert_tokens,
    expert_tokens_index,
    inner_precise,
    output_dtype,
    **parameters,
):
    r"""A feed-forward network, or one for each expert on its own tokens.

    $$ y = \mathrm{act}(x W_1 + b_1) W_2 + b_2 $$

    quantized:
    $$ y = ((\mathrm{act}((x W_1 + b_1) \, d_1) \, s + o)_{int8} W_2 + b_2) \, d_2 $$

    weight-quantized: each $ W $ is $ (W + \mathrm{antiquant\_offset}) \cdot
    \mathrm{antiquant\_scale} $.

    Args:
        x: (*, K1), 2 to 8 dimensions; float16, bfloat16, or int8 in the quantized form.
        weight1: (K1, N1), or (E, K1, N1) with experts; the dtype of `x`, or int8.
        weight2: (K2, N2), or (E, K2, N2); like `weight1`; N2 = K1 but for the gated activations.
        activation: fastgelu, gelu, relu, silu (N1 = K2), or geglu, swiglu, reglu (N1 = 2 K2; the
            left half times the activation of the right half), in capitals or not.
        expert_tokens: how many rows of `x` each expert takes, in order; at most 256 experts.
        expert_tokens_index: where each expert's rows end, instead of `expert_tokens`.
        bias1, bias2: (N1,) and (N2,), with experts (E, N); float16 for float16, float32 for
            bfloat16, int32 in the quantized form.
        scale: float32, (1,) or (E,) by tensor, (N1,) or (E, N1) by column.
        offset: float32, (1,) or (E,).
        deq_scale1, deq_scale2: (N1,) and (N2,), with experts (E, N); int64 packed or float32 for
            float16 results (only packed where `scale` is by column), bfloat16 for bfloat16 results.
        antiquant_scale1, antiquant_scale2, antiquant_offset1, antiquant_offset2: (N1,) and (N2,),
            with experts (E, N); the dtype of `x`.
        inner_precise: 0 or 1, the fast mode, which rounds the first product to float16 before the
            activation.
        output_dtype: float16 (the default) or bfloat16, in the quantized form.

    Returns:
        y of the shape of `x` with N2 last, in the dtype of `x`, or `output_dtype` for int8.

    Constraints:
        The gated activations take float16 without experts and with `inner_precise=1`. K1 and K2 <
        65536. As on the card, restored weights and what goes into the second product are rounded to
        the dtype of `x`, and for float16 results of the quantized form the values between are float16.
    """
    names = ["bias1", "bias2", "scale", "offset", "deq_scale1", "deq_scale2"]
    names += [f"antiquant_{part}{n}" for part in ("scale", "offset") for n in (1, 2)]
    p = {"weight1": weight1, "weight2": weight2} | {n: parameters.get(n) for n in names}
    dtype = (output_dtype or torch.float16) if x.dtype == torch.int8 else x.dtype
    counts = _counts(expert_tokens, expert_tokens_index)
    if counts is None:
        return _network(x, activation, p, inner_precise == 1).to(dtype)
    y = x.new_empty(*x.shape[:-1], weight2.shape[-1], dtype=dtype)
    rows, results = x.reshape(-1, x.shape[-1]), y.view(-1, y.shape[-1])
    start = 0
    for expert, count in enumerate(counts):
        if count:
            own = {n: None if t is None else t[expert] for n, t in p.items()}
            part = _network(rows.narrow(0, start, count), activation, own, inner_precise == 1)
            results.narrow(0, start, count).copy_(part)
        start += count
    return y


@npu_ffn.check
def _(
    x,
    weight1,
    weight2,
    activation,
    expert_tokens,
    expert_tokens_index,
    bias1,
    bias2,
    scale,
    offset,
    deq_scale1,
    deq_scale2,
    antiquant_scale1,
    antiquant_scale2,
    antiquant_offset1,
    antiquant_offset2,
    inner_precise,
    output_dtype,
):
    must.dtype("x", x, torch.float16, torch.bfloat16, torch.int8)
    kind = activation.lower()
    must.hold(kind in (*_PLAIN, *_GATED), "activation", _KINDS, repr(activation))
    must.choice("inner_precise", inner_precise, (None, 0, 1))
    experts = expert_tokens is not None or expert_tokens_index is not None
    _check_sizes(x, weight1, weight2, kind, experts)
    _check_experts(x, weight1, expert_tokens, expert_tokens_index)
    if kind in _GATED:
        fits = x.dtype == weight1.dtype == torch.float16
        must.hold(fits, "x", f"float16, with float16 weights, for '{activation}'", x.dtype)
        must.hold(
            not experts, "activation", "fastgelu, gelu, relu or silu with experts", activation
        )
        must.hold(inner_precise == 1, "inner_precise", f"1 for '{activation}'", inner_precise)
    elif x.dtype == weight1.dtype == torch.bfloat16:
        must.choice("inner_precise", inner_precise, (None, 0))
    _check_forms(
        x,
        {"weight1": weight1, "weight2": weight2},
        {"bias1": bias1, "bias2": bias2},
        {"scale": scale, "offset": offset, "deq_scale1": deq_scale1, "deq_scale2": deq_scale2},
        {
            "antiquant_scale1": antiquant_scale1,
            "antiquant_scale2": antiquant_scale2,
            "antiquant_offset1": antiquant_offset1,
            "antiquant_offset2": antiquant_offset2,
        },
        output_dtype,
    )


npu_ffn.samples = [
    Sample(
        lambda make: (
            (make(4, 8, dtype=torch.float16), make(8, 16, dtype=torch.float16))
            + (make(16, 8, dtype=torch.float16), "gelu")
        )
    ),
    Sample(
        lambda make: (
            (make(4, 8, dtype=torch.float16), make(8, 32, dtype=torch.float16))
            + (make(16, 8, dtype=torch.float16), "swiglu")
        ),
        {"inner_precise": 1},
    ),
    Sample(
        lambda make: (
            (make(5, 8, dtype=torch.bfloat16), make(2, 8, 16, dtype=torch.bfloat16))
            + (make(2, 16, 8, dtype=torch.bfloat16), "silu")
        ),
        lambda make: {"expert_tokens": [2, 3], "bias1": make(2, 16), "bias2": make(2, 8)},
    ),
    Sample(
        lambda make: (
            make(4, 8, dtype=torch.int8, low=-9, high=9),
            make(8, 16, dtype=torch.int8, low=-9, high=9),
            make(16, 8, dtype=torch.int8, low=-9, high=9),
            "relu",
        ),
        lambda make: {
            "scale": make(1),
            "offset": make(1),
            "deq_scale1": make(16),
            "deq_scale2": make(8),
        },
    ),
]
