"""torch.mm, bmm, addmm and baddbmm with `out_dtype` on the device, against products in fp64."""

import pytest
import torch
from torch._subclasses import FakeTensorMode

from softnpu import torch_versions
from tests.ops.support import make

pytestmark = pytest.mark.skipif(not torch_versions.has_out_dtype(), reason="torch has no out_dtype")

SHAPES = {
    "mm": ((5, 300), (300, 7)),
    "bmm": ((2, 5, 300), (2, 300, 7)),
    "addmm": ((7,), (5, 300), (300, 7)),
    "baddbmm": ((2, 5, 7), (2, 5, 300), (2, 300, 7)),
}


def tensors(name, dtype=torch.bfloat16):
    return [make(*shape, dtype=dtype, seed=i) for i, shape in enumerate(SHAPES[name])]


def right(given, **factors):
    *added, a, b = (t.cpu().double() for t in given)
    product = factors.get("alpha", 1) * (a @ b)
    return product + factors.get("beta", 1) * added[0] if added else product


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("name", SHAPES)
def test_wider_than_its_operands(name, dtype):
    given = tensors(name, dtype)
    factors = {"beta": 0.5, "alpha": 2} if "add" in name else {}
    found = getattr(torch, name)(*given, out_dtype=torch.float32, **factors)
    assert found.dtype == torch.float32 and found.device.type == "npu"
    torch.testing.assert_close(found.cpu().double(), right(given, **factors), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", SHAPES)
def test_the_same_dtype_rounds_once(name):
    given = tensors(name)
    found = getattr(torch, name)(*given, out_dtype=torch.bfloat16)
    expected = right(given)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.cpu().double(), expected, rtol=2**-8, atol=1e-4)


@pytest.mark.parametrize("name", SHAPES)
def test_out(name):
    given = tensors(name)
    out = torch.empty(0, device="npu")
    assert getattr(torch, name)(*given, out_dtype=torch.float32, out=out) is out
    torch.testing.assert_close(out.cpu().double(), right(given), rtol=1e-5, atol=1e-4)


def test_shapes_alone():
    with FakeTensorMode():
        a = torch.empty(4, 6, dtype=torch.float16, device="npu")
        b = torch.empty(6, 3, dtype=torch.float16, device="npu")
        found = torch.mm(a, b, out_dtype=torch.float32)
    assert found.shape == (4, 3) and found.dtype == torch.float32


@pytest.mark.parametrize(
    "name,at,argument", [("mm", 0, "self"), ("bmm", 1, "mat2"), ("addmm", 1, "mat1")]
)
def test_integers_are_refused(name, at, argument):
    given = tensors(name)
    given[at] = given[at].int()
    with pytest.raises(RuntimeError, match=f"{name}: argument '{argument}' must be of dtype"):
        getattr(torch, name)(*given, out_dtype=torch.float32)


def test_out_of_another_dtype_is_refused():
    out = torch.empty(5, 7, dtype=torch.float16, device="npu")
    with pytest.raises(RuntimeError, match="mm: argument 'out' must be of dtype torch.float32"):
        torch.mm(*tensors("mm"), out_dtype=torch.float32, out=out)


def test_direct_calls_with_wrong_arguments():
    aten = torch.ops.aten
    x, batch = torch.ones(3, 3, device="npu"), torch.ones(2, 3, 3, device="npu")
    calls = {
        "argument 'mat2' must be a tensor": lambda: aten.mm.dtype(x, None, torch.float32),
        "argument 'self' must be": lambda: aten.addmm.dtype(None, x, x, torch.float32),
        "argument 'out_dtype' must be": lambda: aten.mm.dtype(x, x, torch.int32),
        "argument 'batch2' must": lambda: aten.baddbmm.dtype(batch, batch, x, torch.float32),
        "argument 'out' must be a tensor": lambda: aten.mm.dtype_out(x, x, torch.float32, out=None),
    }
    for words, call in calls.items():
        with pytest.raises(RuntimeError, match=words):
            call()
