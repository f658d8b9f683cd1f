"""npu_cross_entropy_loss against plain loops in fp64, and its backward by finite differences."""

import math

import pytest
import torch

import torch_npu
from tests.ops.support import assert_accurate, gradcheck, make, relaxed

DTYPES = [torch.float16, torch.bfloat16, torch.float32]


def reference(x, target, weight=None, reduction="mean", ignore=-100, smoothing=0.0, zscale=0.0):
    """loss, log_prob, zloss and lse by the documented sums, one row after the other."""
    n, c = x.shape
    w = [1.0] * c if weight is None else weight.tolist()
    losses, zlosses, lses, logs, total, counted = [], [], [], [], 0.0, 0
    for row, y in zip(x.tolist(), target.tolist(), strict=True):
        top = max(row)
        lse = top + math.log(sum(math.exp(v - top) for v in row))
        log_prob = [v - lse for v in row]
        counts = 0.0 if y == ignore else 1.0
        y = y if counts else 0
        smooth = -sum(a * b for a, b in zip(log_prob, w, strict=True)) / c
        losses.append(counts * ((1 - smoothing) * -w[y] * log_prob[y] + smoothing * smooth))
        zlosses.append(counts * zscale * lse**2)
        lses.append(lse)
        logs.append(log_prob)
        total += counts * w[y]
        counted += counts
    loss, zloss = torch.tensor(losses).double(), torch.tensor(zlosses).double()
    if reduction == "mean":
        loss, zloss = loss.sum().view(1) / total, zloss.sum().view(1) / counted
    elif reduction == "sum":
        loss, zloss = loss.sum().view(1), zloss.sum().view(1)
    return loss + zloss, torch.tensor(logs).double(), zloss, torch.tensor(lses).double()


def inputs(n, c, dtype=torch.float32, **options):
    target = make(n, dtype=torch.int64, low=0, high=c, seed=n)
    return make(n, c, dtype=dtype, low=-4, high=4, **options), target


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("n,c", [(6, 10), (1, 1), (5, 133)])
def test_reductions(dtype, reduction, n, c):
    x, target = inputs(n, c, dtype)
    loss, log_prob, zloss, lse = torch_npu.npu_cross_entropy_loss(x, target, reduction=reduction)
    want, want_log, _, _ = reference(x.cpu().double(), target.cpu(), reduction=reduction)
    plain = torch.nn.functional.cross_entropy(x.cpu(), target.cpu(), reduction=reduction)
    assert loss.dtype == log_prob.dtype == dtype
    assert loss.shape == ((n,) if reduction == "none" else (1,))
    assert zloss.shape == lse.shape == (0,)
    assert_accurate(loss, want, plain.view_as(want), slack=1e-5)
    assert_accurate(log_prob, want_log, x.cpu().log_softmax(-1))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(
    "weighted,ignore,smoothing", [(True, 3, 0.0), (False, 3, 0.2), (True, -1, 0.9)]
)
def test_options(reduction, weighted, ignore, smoothing):
    x, target = inputs(12, 6)
    weight = make(6, low=0.1) if weighted else None
    got = torch_npu.npu_cross_entropy_loss(x, target, weight, reduction, ignore, smoothing)[0]
    w = weight.cpu().double() if weighted else None
    want = reference(x.cpu().double(), target.cpu(), w, reduction, ignore, smoothing)[0]
    assert (target == 3).any()
    assert_accurate(got, want, want.float(), slack=1e-5)


def test_defaults_are_mean():
    x, target = inputs(8, 5)
    got = torch_npu.npu_cross_entropy_loss(x, target)[0]
    assert torch.equal(got, torch_npu.npu_cross_entropy_loss(x, target, None, "mean", -100, 0.0)[0])


def test_all_rows_ignored():
    x, target = make(3, 4), torch.full((3,), 2).to(make(1).device)
    loss = torch_npu.npu_cross_entropy_loss(x, target, ignore_index=2)[0]
    assert loss.isnan().item() is torch_npu.npu.utils.is_support_inf_nan()
    got = torch_npu.npu_cross_entropy_loss(x, target, reduction="none", ignore_index=2)[0]
    assert got.tolist() == [0.0, 0.0, 0.0]


def test_large_logits_stay_finite():
    x = torch.tensor([[1e4, -1e4, 0.0]]).to(make(1).device)
    loss = torch_npu.npu_cross_entropy_loss(x, torch.tensor([1]).to(x.device))[0]
    assert loss.tolist() == [20000.0]


def test_non_contiguous():
    x, target = make(7, 5).t(), make(5, 2, dtype=torch.int64, low=0, high=7)[:, 0]
    got = torch_npu.npu_cross_entropy_loss(x, target)[0]
    want = reference(x.cpu().double(), target.cpu())[0]
    assert_accurate(got, want, want.float())


@relaxed
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_zloss(reduction):
    x, target = inputs(9, 6)
    got = torch_npu.npu_cross_entropy_loss(x, target, None, reduction, 3, 0.1, 0.05, True)
    want = reference(x.cpu().double(), target.cpu(), None, reduction, 3, 0.1, 0.05)
    for actual, expected in zip(got, want, strict=True):
        assert_accurate(actual, expected, expected.float(), slack=1e-5)


@relaxed
def test_lse_without_returning_zloss():
    x, target = inputs(9, 6)
    _, _, zloss, lse = torch_npu.npu_cross_entropy_loss(x, target, lse_square_scale_for_zloss=0.1)
    assert zloss.shape == (0,) and lse.shape == (9,)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted,ignore,smoothing,z", [(False, -100, 0, 0), (True, 2, 0.3, 0.1)])
def test_gradients(reduction, weighted, ignore, smoothing, z):
    x, target = inputs(4, 3, torch.float64, requires_grad=True)
    weight = make(3, low=0.1) if weighted else None

    def losses(a):
        found = torch_npu.npu_cross_entropy_loss(
            a, target, weight, reduction, ignore, smoothing, z, bool(z)
        )
        return found[0] + 3 * found[2] if z else found[0]

    assert (target == 2).any()
    gradcheck(losses, x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_gradient_accuracy(dtype, reduction):
    x, target = inputs(16, 40, dtype, requires_grad=True)
    torch_npu.npu_cross_entropy_loss(x, target, reduction=reduction)[0].sum().backward()
    found = []
    for kind in (torch.float64, dtype):
        a = x.detach().cpu().to(kind).requires_grad_()
        torch.nn.functional.cross_entropy(a, target.cpu(), reduction=reduction).sum().backward()
        found.append(a.grad)
    assert x.grad.dtype == dtype
    assert_accurate(x.grad, *found)


def test_backward_operator_by_hand():
    log_prob = torch.log(torch.tensor([[0.25, 0.75]])).to(make(1).device)
    target, grad = torch.tensor([1]).to(log_prob.device), torch.tensor([2.0]).to(log_prob.device)
    dx = torch_npu.npu_cross_entropy_loss_backward(grad, log_prob, target, reduction="sum")
    assert dx.flatten().tolist() == pytest.approx([0.5, -0.5])


def test_target_out_of_range():
    x, _ = inputs(3, 4)
    with pytest.raises(
        RuntimeError, match=r"npu_cross_entropy_loss: .*'target' .*\[0, 4\), .* 4 at index 1"
    ):
        torch_npu.npu_cross_entropy_loss(x, torch.tensor([0, 4, 1]).to(x.device))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("ignore", [-100, -1, 9])
@pytest.mark.parametrize("weighted", [False, True])
def test_targets_of_no_class_are_ignored(reduction, ignore, weighted):
    x, target = inputs(12, 6)
    target[::3] = ignore
    weight = make(6, low=0.1, high=3) if weighted else None
    w = weight.cpu().double() if weighted else None
    for smoothing in (0.0, 0.3, 1.0):
        got = torch_npu.npu_cross_entropy_loss(x, target, weight, reduction, ignore, smoothing)[0]
        want = reference(x.cpu().double(), target.cpu(), w, reduction, ignore, smoothing)[0]
        assert_accurate(got, want, want.float(), slack=1e-5)


def test_padding_has_no_gradient():
    x, target = inputs(6, 5, requires_grad=True)
    target[1::2] = -100
    torch_npu.npu_cross_entropy_loss(x, target)[0].backward()
    leaf = x.detach().cpu().double().requires_grad_()
    torch.nn.functional.cross_entropy(leaf, target.cpu()).backward()
    assert (x.grad[1::2] == 0).all()
    assert_accurate(x.grad, leaf.grad, leaf.grad.float())


@pytest.mark.parametrize(
    "options,message",
    [
        ({"reduction": "max"}, "'reduction' must be 'mean', 'sum' or 'none', but received 'max'"),
        ({"label_smoothing": 1.5}, r"'label_smoothing' must be in \[0, 1\], but received 1.5"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(RuntimeError, match=message):
        torch_npu.npu_cross_entropy_loss(*inputs(4, 5), **options)


@pytest.mark.parametrize(
    "options", [{"lse_square_scale_for_zloss": 0.1}, {"return_zloss": True}], ids=lambda o: [*o][0]
)
def test_zloss_is_reserved(options):
    with pytest.raises(NotImplementedError, match=f"argument '{[*options][0]}' must be left at"):
        torch_npu.npu_cross_entropy_loss(*inputs(4, 5), **options)


def test_bad_weight():
    with pytest.raises(RuntimeError, match=r"'weight' must be of shape \(2\)"):
        torch_npu.npu_cross_entropy_loss(*inputs(4, 2), make(3))


@pytest.mark.family("A2")
def test_bad_target_dtype():
    x, target = inputs(4, 5)
    with pytest.raises(RuntimeError, match="'target' must be of dtype torch.int64.*int32"):
        torch_npu.npu_cross_entropy_loss(x, target.int())


def test_what_a_gradient_forbids():
    x, target = inputs(4, 5, requires_grad=True)
    with pytest.raises(RuntimeError, match="'label_smoothing' must be 0 when 'input' requires a"):
        torch_npu.npu_cross_entropy_loss(x, target, reduction="sum", label_smoothing=0.1)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_gradient_with_weights_and_ignored_targets(reduction):
    """CANN's kernel of the gradient reads both in any reduction, though the page has neither for the mean."""
    x, target = inputs(12, 6, requires_grad=True)
    weight = make(6, low=0.1, high=3)
    torch_npu.npu_cross_entropy_loss(x, target, weight, reduction, 2)[0].sum().backward()
    a = x.detach().cpu().double().requires_grad_()
    loss = torch.nn.functional.cross_entropy(
        a, target.cpu(), weight.cpu().double(), ignore_index=2, reduction=reduction
    )
    loss.sum().backward()
    assert (target == 2).any() and (target != 2).any()
    assert_accurate(x.grad, a.grad, a.grad.float(), slack=1e-6)
