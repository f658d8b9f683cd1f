"""npu_add_quant_gmm_ and npu_add_quant_gmm against fp64, group by group."""

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
    before = self.clone()
    out = torch_npu.npu_add_quant_gmm(self, *args, **options)
    assert torch.equal(self, before)
    torch_npu.npu_add_quant_gmm_(self, *args, **options)
    assert torch.equal(self, out)
    return out


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("ends", [(130, 200), (1, 65, 200), (0, 0, 190)])
def test_microscaling(kind, ends):
    (x1, a), (x2, b) = eights(200, 4), eights(200, 6, seed=1)
    groups, slots = len(ends), 200 // 64 + len(ends)
    (s1, p1), (s2, p2) = powers(slots, 4, 2), powers(slots, 6, 2, seed=1)
    self = make(groups, 4, 6)
    want, start = self.cpu().double().clone(), 0
    for g, end in enumerate(ends):
        if end > start:
            first = start // 64 + g
            left = a[start:end] * along_depth(p1[first:], end - start)
            want[g] += left.T @ (b[start:end] * along_depth(p2[first:], end - start))
        start = end
    sizes = [e - s for s, e in zip((0, *ends), ends, strict=False)]
    given = torch.tensor(ends if kind == 0 else sizes).npu()
    options = {"x1_scale_dtype": E8M0, "x2_scale_dtype": E8M0, "group_list_type": kind}
    y = both(self, x1.t(), x2, s2, given, x1_scale=s1.transpose(0, 1), **options)
    torch.testing.assert_close(y.cpu().double(), want, rtol=1e-5, atol=want.abs().max() * 1e-6)


@pytest.mark.parametrize("shape", [(2,), (2, 1), (2, 6)])
def test_hifloat8(shape):
    (x1, a), (x2, b) = hifloats(9, 4), hifloats(9, 6, seed=3)
    s2, s1 = make(*shape, low=0), make(2, low=0, seed=5)
    self = make(2, 4, 6)
    want = self.cpu().double().clone()
    for g, part in ((0, slice(0, 4)), (1, slice(4, 9))):
        product = a[part].T @ b[part] * s2.cpu().double()[g].reshape(1, -1)
        want[g] += product * float(s1[g])
    codes = {"x1_dtype": HIFLOAT8, "x2_dtype": HIFLOAT8}
    y = both(self, x1.t(), x2, s2, torch.tensor([4, 9]).npu(), x1_scale=s1, **codes)
    torch.testing.assert_close(y.cpu().double(), want, rtol=1e-5, atol=1e-4)


def test_bad_arguments():
    (x1, _), (x2, _), self = eights(64, 4), eights(64, 6), make(2, 4, 6)
    x1, s1, s2 = x1.t(), powers(3, 4, 2)[0].transpose(0, 1), powers(3, 6, 2)[0]
    groups = torch.tensor([9, 64]).npu()
    good = {"x1_scale": s1, "x1_scale_dtype": E8M0, "x2_scale_dtype": E8M0}
    for args, options, text in [
        ((self[:1], x1, x2, s2, groups), good, r"'self' must be of shape \(2, 4, 6\)"),
        ((self, x1, x2, s2[:1], groups), good, r"'x2_scale' must be of shape \(3, 6, 2\)"),
        ((self, x1, x2, s2, groups.int()), good, "'group_list' must be of dtype torch.int64"),
        ((self, x1, x2, s2, groups), {**good, "x1_scale": None}, "'x1_scale' must be given always"),
        ((self, x1.contiguous(), x2, s2, groups), good, r"'x1' must be \(M, K\), a transposed"),
        ((self, x1, x2, s2, groups), {**good, "group_list_type": 3}, "'group_list_type' must be"),
        ((self, x1, x2[:9], s2, groups), good, r"'x2' must be of shape \(64, \*\)"),
    ]:
        with pytest.raises(RuntimeError, match="npu_add_quant_gmm_: argument " + text):
            torch_npu.npu_add_quant_gmm_(*args, **options)
    with pytest.raises(NotImplementedError, match="'group_sizes' must be left at None"):
        torch_npu.npu_add_quant_gmm_(self, x1, x2, s2, groups, **good, group_sizes=[0, 0, 0])
    for name in ("npu_add_quant_gmm", "npu_add_quant_gmm_"):
        with on("A2"), pytest.raises(NotImplementedError, match="'device' must be Ascend950"):
            getattr(torch_npu, name)(self, x1, x2, s2, groups, **good)
