"""aclnn functions by their addresses in libopapi.so, against formulas in float64."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import torch_npu
from softnpu import kernels
from tests import ROOT
from tests.cpp import opapi


def make(*shape, dtype=torch.float32):
    return torch.randn(*shape).to(dtype).npu()


def close(found, expected, tolerance=1e-5):
    torch.testing.assert_close(
        found.cpu().double(), expected, atol=tolerance, rtol=tolerance, check_dtype=False
    )


def wide(*tensors):
    return [x.cpu().double() for x in tensors]


def test_every_function_of_the_table_has_both_steps():
    table = (ROOT / "csrc" / "opapi" / "functions.inc").read_text("utf-8")
    names = re.findall(r"^ACLNN\((\w+)", table, re.MULTILINE)
    assert len(names) == len(set(names)) > 1100
    for name in names:
        assert hasattr(opapi.library, name) and hasattr(opapi.library, f"{name}GetWorkspaceSize")


def test_operators_of_aten_with_strides_offsets_and_other_names():
    x, y, out = make(3, 8), make(9, 3)[1:].t(), torch.empty(8, 3, device="npu").t()
    opapi.call("aclnnAdd", x, y, opapi.scalar(2.0), out)
    a, b = wide(x, y)
    close(out, a + 2 * b)
    opapi.call("aclnnInplaceMul", out, x)
    close(out, (a + 2 * b) * a)
    opapi.call("aclnnReduceSum", x, opapi.ints(1), True, ctypes.c_int32(0), out[:, :1])
    close(out[:, :1], a.sum(1, keepdim=True))
    opapi.call("aclnnCat", opapi.tensors(x, y), 0, both := torch.empty(6, 8, device="npu"))
    close(both, torch.cat([a, b]))


def test_products_and_softmax():
    x, w, out = make(4, 6), make(6, 5), torch.empty(4, 5, device="npu")
    opapi.call("aclnnMatmul", x, w, out, ctypes.c_int8(1))
    a, b = wide(x, w)
    close(out, a @ b)
    opapi.call("aclnnSoftmax", x, -1, row := torch.empty(4, 6, device="npu"))
    close(row, a.softmax(-1))
    opapi.call("aclnnCast", x, ctypes.c_int32(1), half := torch.empty(4, 6).half().npu())
    assert torch.equal(half.cpu(), x.cpu().half())


def test_operators_of_torch_npu_and_their_gradients():
    x, out = make(3, 8), torch.empty(3, 4, device="npu")
    opapi.call("aclnnSwiGlu", x, -1, out)
    a = x.cpu().double().requires_grad_()
    left, right = a.chunk(2, -1)
    expected = torch.nn.functional.silu(left) * right
    close(out, expected.detach())
    grad = make(3, 4)
    opapi.call("aclnnSwiGluGrad", grad, x, -1, dx := torch.empty(3, 8, device="npu"))
    expected.backward(grad.cpu().double())
    close(dx, a.grad)


def rotate(x, cos, sin, mode):
    if mode == 0:
        left, right = x.chunk(2, -1)
        turned = torch.cat([-right, left], -1)
    else:
        turned = torch.stack([-x[..., 1::2], x[..., ::2]], -1).reshape(x.shape)
    return x * cos + turned * sin


@pytest.mark.parametrize("mode", [0, 1])
def test_rotary_position_embedding(mode):
    x, cos, sin = make(1, 4, 2, 16), make(1, 4, 1, 16), make(1, 4, 1, 16)
    out = torch.empty_like(x)
    opapi.call("aclnnRotaryPositionEmbedding", x, cos, sin, mode, out)
    a, c, s = (t.requires_grad_() for t in wide(x, cos, sin))
    expected = rotate(a, c, s, mode)
    close(out, expected.detach())
    grad = make(1, 4, 2, 16)
    expected.backward(grad.cpu().double())
    found = [torch.empty_like(t) for t in (x, cos, sin)]
    opapi.call("aclnnRotaryPositionEmbeddingGrad", grad, cos, sin, x, mode, *found)
    for made, wanted in zip(found, (a, c, s), strict=True):
        close(made, wanted.grad, 1e-4)
    opapi.call("aclnnRotaryPositionEmbeddingGrad", grad, cos, sin, None, mode, found[0], None, None)
    close(found[0], a.grad)
    found[0].zero_()
    none = (
        torch.empty(0, device="npu"),
        torch.empty(0, device="npu"),
    )  # as MindSpeed asks for dx alone
    opapi.call("aclnnRotaryPositionEmbeddingGrad", grad, cos, sin, None, mode, found[0], *none)
    close(found[0], a.grad)


def test_grouped_matmul_of_both_kinds():
    x, weight, groups = make(6, 8, dtype=torch.float16), make(2, 8, 4, dtype=torch.float16), (2, 6)
    out = torch.empty(6, 4, dtype=torch.float16, device="npu")
    a, w = wide(x, weight)
    expected = torch.cat([a[:2] @ w[0], a[2:] @ w[1]])
    none = opapi.tensors()
    opapi.call(
        "aclnnGroupedMatmulV2", opapi.tensors(x), opapi.tensors(weight), *[none] * 5, opapi.ints(*groups), 3, 0,
        opapi.tensors(out),
    )  # fmt: skip
    close(out, expected, 2e-2)
    counts = torch.tensor([2, 4], device="npu")
    out.zero_()
    opapi.call(
        "aclnnGroupedMatmulV4", opapi.tensors(x), opapi.tensors(weight), *[none] * 6, counts, *[none] * 3, 3, 0, 1, 0,
        opapi.tensors(out), none, none,
    )  # fmt: skip
    close(out, expected, 2e-2)


def test_optimizer_steps():
    var, m, v, grad, step = (
        make(5),
        make(5),
        make(5).abs(),
        make(5),
        torch.tensor([2], device="npu"),
    )
    p, a, b, g = wide(var, m, v, grad)
    first, second = 0.9 * a + 0.1 * g, 0.99 * b + 0.01 * g * g
    rate, decay, eps = 0.1, 0.2, 1e-8
    numbers = map(opapi.single, (rate, 0.9, 0.99, decay, eps))
    opapi.call("aclnnApplyAdamWV2", var, m, v, None, grad, step, *numbers, False, False)
    denominator = (second / (1 - 0.99**3)).sqrt() + eps
    close(var, p * (1 - rate * decay) - rate * first / (1 - 0.9**3) / denominator)
    close(m, first)
    close(v, second)
    var, m, v, s = (t.float().npu() for t in (p, a, b, p + 1))
    opapi.call(
        "aclnnApplyFusedEmaAdam", grad, var, m, v, s, step, rate, 0.5, 0.9, 0.99, eps, 1, True, decay
    )  # fmt: skip
    update = first / (1 - 0.9**2) / ((second / (1 - 0.99**2)).sqrt() + eps) + decay * p
    close(var, p - rate * update)
    close(s, 0.5 * (p + 1) + 0.5 * (p - rate * update))


def test_moe_gradient_without_the_tokens():
    tokens, indices = make(4, 6), torch.tensor([[1, 0], [2, 1], [0, 2], [1, 2]], device="npu")
    permuted, order = (
        torch.empty(8, 6, device="npu"),
        torch.empty(8, dtype=torch.int32, device="npu"),
    )
    opapi.call("aclnnMoeTokenPermute", tokens, indices.int(), 8, False, permuted, order)
    rows = indices.cpu().flatten().argsort(stable=True)
    close(permuted, tokens.cpu().double()[rows // 2])
    grad, out = make(8, 6), torch.empty(4, 6, device="npu")
    opapi.call("aclnnMoeTokenPermuteGrad", grad, order, 2, False, out)
    expected = torch.zeros(4, 6, dtype=torch.float64).index_add_(0, rows // 2, grad.cpu().double())
    close(out, expected)


def test_attention_and_its_gradient():
    q, k, v = (make(1, 16, 32, dtype=torch.float16) for _ in range(3))
    largest, total = (torch.empty(1, 2, 16, 8, device="npu") for _ in range(2))
    out, scale = torch.empty_like(q), 0.25
    options = (scale, 1.0, 65535, 65535, 2, "BSH", 0, 0, 1)
    opapi.call(
        "aclnnFlashAttentionScoreV2", q, k, v, None, None, None, None, None, None, None, *options, largest, total,
        None, out,
    )  # fmt: skip
    a, b, c = (t.view(1, 16, 2, 16).transpose(1, 2).requires_grad_() for t in wide(q, k, v))
    expected = (a @ b.transpose(-1, -2) * scale).softmax(-1) @ c
    close(out.view(1, 16, 2, 16).transpose(1, 2), expected.detach(), 3e-3)
    dy = make(1, 16, 32, dtype=torch.float16)
    expected.backward(dy.cpu().double().view(1, 16, 2, 16).transpose(1, 2))
    found = [torch.empty_like(q) for _ in range(3)]
    opapi.call(
        "aclnnFlashAttentionScoreGradV2", q, k, v, dy, None, None, None, None, largest, total, None, out, None, None,
        None, *options, *found, None,
    )  # fmt: skip
    for made, wanted in zip(found, (a, b, c), strict=True):
        close(made.view(1, 16, 2, 16).transpose(1, 2), wanted.grad, 5e-3)


def test_a_reference_of_the_program_s_own():
    x, out = make(4), torch.empty(4, device="npu")
    with pytest.raises(opapi.Error, match=r"aclnnAcosGrad: no operator.*softnpu.kernels.register"):
        opapi.call("aclnnAcosGrad", x, x, out)
    schema = "(Tensor y_grad, Tensor x) -> Tensor"
    kernels.register("aclnn::aclnnAcosGrad", lambda dy, x: dy * 3 + x, schema=schema)
    try:
        opapi.call("aclnnAcosGrad", x, x, out)
        close(out, 4 * x.cpu().double())
    finally:
        kernels.unregister("aclnn::aclnnAcosGrad")


def test_what_fails_has_a_code_and_a_message():
    x = make(1, 4, 2, 16)
    with pytest.raises(opapi.Error, match="mode must be 0 to 3, received 7") as raised:
        opapi.call("aclnnRotaryPositionEmbedding", x, x, x, 7, x)
    assert raised.value.code == 561000
    with pytest.raises(opapi.Error, match="fit none of these schemas"):
        opapi.call("aclnnMatmul", x, None, x, ctypes.c_int8(0))
    numbers = (ctypes.c_int64 * 1)(1)
    assert opapi.library.aclCreateTensor(numbers, 1, 29, numbers, 0, 2, numbers, 1, None) is None
    assert b"received 29" in opapi.library.aclGetRecentErrMsg()
    assert opapi.library.aclDestroyTensor(None) == 161001


def test_a_repeatable_executor_runs_again():
    x, y, out = make(3), make(3), torch.zeros(3, device="npu")
    library, size, executor = opapi.library, ctypes.c_uint64(), ctypes.c_void_p()
    arguments = (opapi.tensor(x), opapi.tensor(y), opapi.tensor(out))
    assert not library.aclnnMulGetWorkspaceSize(
        *arguments, ctypes.byref(size), ctypes.byref(executor)
    )
    assert library.aclSetAclOpExecutorRepeatable(executor) == 0
    for _ in range(2):
        x += 1
        assert library.aclnnMul(None, size, executor, None) == 0
        close(out, x.cpu().double() * y.cpu().double())
    assert library.aclDestroyAclOpExecutor(executor) == 0


def refused(made):
    """What the library says of something that it did not make."""
    assert made is None
    return opapi.library.aclGetRecentErrMsg().decode()


def test_null_pointers_and_sizes_that_nothing_has():
    null, library = ctypes.c_void_p(None), opapi.library
    numbers = (ctypes.c_int64 * 2)(2, 3)
    for kind in ("IntArray", "FloatArray", "BoolArray", "TensorList", "ScalarList"):
        create = getattr(library, f"aclCreate{kind}")
        create.restype = ctypes.c_void_p
        said = refused(create(null, ctypes.c_uint64(3)))
        assert f"aclCreate{kind}: expected 'value' with 3 elements, received a null pointer" in said
        assert f"received {2**63}" in refused(create(numbers, ctypes.c_uint64(2**63)))
        assert create(null, ctypes.c_uint64(0)) is not None
    assert "received a null pointer" in refused(library.aclCreateScalar(null, 0))


@pytest.mark.parametrize(
    ("dims", "strides", "offset", "said"),
    [
        (None, None, 0, "expected 'viewDims' with 2 elements, received a null pointer"),
        ((2, -3), None, 0, "expected sizes of 0 or more in 'viewDims', received"),
        ((2, 3), (3, -1), 0, "expected steps of 0 or more in 'stride', received"),
        ((2, 3), None, -1, "expected an 'offset' of 0 or more, received -1"),
        ((2**40, 2**40), None, 0, "whose bytes 64 bits can count"),
        ((2, 3), (2**62, 2**62), 0, "whose bytes 64 bits can count"),
    ],
)
def test_tensors_that_cannot_be(dims, strides, offset, said):
    pair = ctypes.c_int64 * 2
    x = torch.ones(2, 3, device="npu")
    made = opapi.library.aclCreateTensor(
        None if dims is None else pair(*dims), ctypes.c_uint64(2), 0, None if strides is None else pair(*strides),
        ctypes.c_int64(offset), 2, None, ctypes.c_uint64(0), ctypes.c_void_p(x.data_ptr()),
    )  # fmt: skip
    assert said in refused(made)


def test_a_tensor_without_an_address_is_refused_when_it_is_used():
    sizes = (ctypes.c_int64 * 2)(2, 3)
    made = opapi.library.aclCreateTensor(
        sizes, ctypes.c_uint64(2), 0, None, ctypes.c_int64(0), 2, sizes, ctypes.c_uint64(2), None
    )
    assert made is not None
    with pytest.raises(
        opapi.Error, match=r"aclnnAbs: expected a tensor with memory, received one of \[2, 3\]"
    ):
        opapi.call("aclnnAbs", ctypes.c_void_p(made), torch.ones(2, 3, device="npu"))


def test_a_list_of_bools_keeps_its_members():
    given = (ctypes.c_bool * 3)(False, True, True)
    made = ctypes.c_void_p(opapi.library.aclCreateBoolArray(given, ctypes.c_uint64(3)))
    size = ctypes.c_uint64()
    assert opapi.library.aclGetBoolArraySize(made, ctypes.byref(size)) == 0 and size.value == 3


class _Passing(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def test_an_error_that_passes_a_dispatch_mode_keeps_its_text():
    x, cos, sin = make(1, 4, 2, 16), make(1, 4, 1, 16), make(1, 4, 1, 16)
    wrong = torch.empty(3, device="npu")
    with (
        _Passing(),
        pytest.raises(opapi.Error, match=r"aclnnRotaryPositionEmbedding: .*tensor a \(3\)"),
    ):
        opapi.call("aclnnRotaryPositionEmbedding", x, cos, sin, 0, wrong)


def test_the_library_of_atb_is_where_programs_load_it():
    path = Path(torch_npu.__file__).parent / "lib" / "libop_plugin_atb.so"
    torch.ops.load_library(str(path))
    assert torch.ops.atb._npu_paged_attention is not None
