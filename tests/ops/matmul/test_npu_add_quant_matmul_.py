"""npu_add_quant_matmul_ and npu_add_quant_matmul against fp64."""

import pytest
import torch

import torch_npu
from tests.ops.families import on
from tests.ops.matmul.eights import E8M0, HIFLOAT8, along_depth, eights, hifloats, powers
from tests.ops.support import make


@pytest.fixture(autouse=True)
def _ascend950():
    with on("A5"):
        yield


def both(self, *args, **options):
    """The sum out of place and in place, which agree; `self` is written by the latter alone."""
    before = self.clone()
    out = torch_npu.npu_add_quant_matmul(self, *args, **options)
    assert torch.equal(self, before)
    version = self._version
    result = torch_npu.npu_add_quant_matmul_(self, *args, **options)
    assert result is self or result.data_ptr() == self.data_ptr()
    assert torch.equal(self, out) and self._version > version
    return out


@pytest.mark.parametrize("depth", [1, 64, 70, 200])
@pytest.mark.parametrize(
    "kinds", [(torch.float8_e4m3fn, torch.float8_e5m2), (torch.float8_e5m2,) * 2]
)
@pytest.mark.parametrize("coded", [True, False])
def test_microscaling(depth, kinds, coded):
    (x1, a), (x2, b) = eights(depth, 4, dtype=kinds[0]), eights(depth, 6, dtype=kinds[1], seed=1)
    pairs = -(-depth // 64)
    (s1, p1), (s2, p2) = powers(pairs, 4, 2), powers(pairs, 6, 2, seed=1)
    options = {"x1_scale_dtype": E8M0, "x2_scale_dtype": E8M0, "group_sizes": [1, 1, 32]}
    if not coded:
        s1, s2 = s1.view(torch.float8_e8m0fnu), s2.view(torch.float8_e8m0fnu)
        options = {} if depth % 64 == 0 else {"group_sizes": [0, 0, 32]}
    self = make(4, 6)
    want = self.cpu().double() + (a * along_depth(p1, depth)).T @ (b * along_depth(p2, depth))
    y = both(self, x1.t(), x2, s2, x1_scale=s1.transpose(0, 1), **options)
    torch.testing.assert_close(y.cpu().double(), want, rtol=1e-5, atol=want.abs().max() * 1e-6)


def test_hifloat8():
    (x1, a), (x2, b) = hifloats(9, 4), hifloats(9, 6, seed=3)
    s1, s2 = make(1, low=0), make(1, low=0, seed=2)
    self = make(4, 6)
    want = self.cpu().double() + a.T @ b * s2.cpu().double() * s1.cpu().double()
    y = both(self, x1.t(), x2, s2, x1_scale=s1, x1_dtype=HIFLOAT8, x2_dtype=HIFLOAT8)
    torch.testing.assert_close(y.cpu().double(), want, rtol=1e-5, atol=1e-5)


def test_strides():
    (x1, a), (x2, b) = eights(64, 4), eights(64, 12, seed=1)
    x2, b = x2[:, ::2], b[:, ::2]
    (s1, p1), (s2, p2) = powers(1, 4, 2), powers(1, 6, 2)
    whole = make(8, 6)
    want = whole.cpu().double().clone()
    want[::2] += (a * along_depth(p1, 64)).T @ (b * along_depth(p2, 64))
    options = {"x1_scale": s1.transpose(0, 1), "x1_scale_dtype": E8M0, "x2_scale_dtype": E8M0}
    torch_npu.npu_add_quant_matmul_(whole[::2], x1.t(), x2, s2, **options)
    torch.testing.assert_close(whole.cpu().double(), want, rtol=1e-5, atol=want.abs().max() * 1e-6)


def test_bad_arguments():
    (x1, _), (x2, _), self = eights(64, 4), eights(64, 6), make(4, 6)
    x1, s1, s2 = x1.t(), powers(1, 4, 2)[0].transpose(0, 1), powers(1, 6, 2)[0]
    good = {"x1_scale": s1, "x1_scale_dtype": E8M0, "x2_scale_dtype": E8M0}
    for args, options, text in [
        ((self.half(), x1, x2, s2), good, "'self' must be of dtype torch.float32"),
        ((self[:3], x1, x2, s2), good, r"'self' must be of shape \(4, 6\), but received \(3, 6\)"),
        ((self, x1, x2[:5], s2), good, r"'x2' must be of shape \(64, \*\)"),
        ((self, x1, x2, s2[:, :3]), good, r"'x2_scale' must be of shape \(1, 6, 2\)"),
        ((self, x1, x2, s2), {**good, "x1_scale": None}, "'x1_scale' must be given always"),
        ((self, x1.contiguous(), x2, s2), good, r"'x1' must be \(M, K\), a transposed view"),
        ((self, x1, x2.t().contiguous().t(), s2), good, "'x2' must be contiguous, not transposed"),
        ((self, x1, x2, s2), {**good, "group_sizes": [1, 32]}, "'group_sizes' must be of 3 num"),
        ((self, x1, x2, s2), {**good, "group_sizes": [1, 1, 64]}, "'group_sizes' must be"),
        ((self, x1, x2, s2), {**good, "x1_dtype": 290}, "'x2_dtype' must be hifloat8 for both"),
        ((self, x1.t().float().t(), x2, s2), good, "'x1' must be of dtype torch.float8_e4m3fn or"),
    ]:
        for name in ("npu_add_quant_matmul_", "npu_add_quant_matmul"):
            with pytest.raises(RuntimeError, match=f"{name}: argument {text}"):
                getattr(torch_npu, name)(*args, **options)
    with on("A3"), pytest.raises(NotImplementedError, match="'device' must be Ascend950"):
        torch_npu.npu_add_quant_matmul(self, x1, x2, s2, **good)


def test_group_sizes_are_given_for_odd_depths():
    (x1, _), (x2, _) = eights(70, 4), eights(70, 6)
    s1, s2 = powers(2, 4, 2)[0].transpose(0, 1), powers(2, 6, 2)[0]
    good = {"x1_scale": s1, "x1_scale_dtype": E8M0, "x2_scale_dtype": E8M0}
    with pytest.raises(RuntimeError, match=r"'group_sizes' must be \[1, 1, 32\]; a 0 is inferred"):
        torch_npu.npu_add_quant_matmul(make(4, 6), x1.t(), x2, s2, **good)
