"""The functions of torch_npu.contrib against plain loops and PyTorch."""

import math

import pytest
import torch

import torch_npu
from tests.ops.support import make
from torch_npu import contrib
from torch_npu.contrib import function
from torch_npu.npu import _options

pytestmark = pytest.mark.filterwarnings("ignore:torch_npu.contrib:FutureWarning")


def boxes(count, seed=0, size=100.0):
    low = make(count, 2, low=0, high=size, seed=seed)
    return torch.cat([low, low + make(count, 2, low=1, high=size, seed=seed + 1)], 1)


def overlap(a, b):
    """(intersection, union) of two boxes, by hand."""
    w = min(a[2], b[2]) - max(a[0], b[0])
    h = min(a[3], b[3]) - max(a[1], b[1])
    inside = max(w, 0) * max(h, 0)
    return inside, (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - inside


@pytest.mark.parametrize("mode", ["iou", "ptiou"])
@pytest.mark.parametrize("normalized", [False, True])
def test_npu_iou(mode, normalized):
    a, b = boxes(5), boxes(3, seed=7)
    scale = 100.0 if normalized else 1.0
    found = contrib.npu_iou(a / scale, b / scale, mode=mode, is_normalized=normalized)
    assert found.shape == (5, 3)
    for i, first in enumerate(a.tolist()):
        for j, second in enumerate(b.tolist()):
            inside, union = overlap(first, second)
            want = (inside + (0.001 if mode == "iou" else 0)) / (union + 0.001)
            assert math.isclose(found[i, j].item(), want, rel_tol=6e-3, abs_tol=1e-3)
    assert contrib.npu_ptiou is contrib.npu_iou


def test_integer_boxes_are_taken():
    a = torch.tensor([[0, 0, 10, 10]]).npu()
    assert math.isclose(contrib.npu_iou(a, a).item(), 1, rel_tol=6e-3)


def test_npu_giou():
    a = make(6, 4, low=1, high=10, requires_grad=True)
    b = make(6, 4, low=1, high=10, seed=3)
    found = contrib.npu_giou(a, b)
    for index in range(6):
        (x, y, w, h), (u, v, p, q) = a[index].tolist(), b[index].tolist()
        one = (x - w / 2, y - h / 2, x + w / 2, y + h / 2)
        two = (u - p / 2, v - q / 2, u + p / 2, v + q / 2)
        inside, union = overlap(one, two)
        hull = (max(one[2], two[2]) - min(one[0], two[0])) * (
            max(one[3], two[3]) - min(one[1], two[1])
        )
        want = inside / union - (hull - union) / hull
        assert math.isclose(found.flatten()[index].item(), want, rel_tol=1e-3, abs_tol=1e-3)
    found.sum().backward()
    assert a.grad.abs().sum() > 0
    turned = contrib.npu_giou(a.t(), b.t(), is_permuted=False)
    assert torch.equal(turned.flatten(), found.flatten())


@pytest.mark.parametrize("name", ["npu_diou", "npu_ciou"])
def test_diou_and_ciou_are_the_operators(name):
    a, b = make(4, 8, low=1, high=9), make(4, 8, low=1, high=9, seed=5)
    found = getattr(function, name)(a, b)
    more = (True,) if name == "npu_ciou" else ()
    want = getattr(torch_npu, name)(a, b, True, False, 0, *more)
    want = want[0] if isinstance(want, tuple) else want
    assert torch.equal(found[0] if isinstance(found, tuple) else found, want)


def test_npu_single_level_responsible_flags():
    gt = torch.tensor([[10.0, 10, 22, 22], [40, 0, 60, 10]]).npu()
    flags = contrib.npu_single_level_responsible_flags((8, 8), gt, (8, 8), 3).reshape(8, 8, 3)
    want = torch.zeros(8, 8, 3)
    for x0, y0, x1, y1 in gt.tolist():
        want[int((y0 + y1) / 2 // 8), int((x0 + x1) / 2 // 8)] = 1
    assert torch.equal(flags.cpu().float(), want)


def test_boxes_go_there_and_back():
    a, gt = boxes(9), boxes(9, seed=4)
    options = {"means": [0.1, 0.0, 0.0, 0.2], "stds": [0.5, 0.5, 1.0, 2.0]}
    deltas = contrib.npu_bbox_coder_encode_xyxy2xywh(a, gt, **options)
    back = contrib.npu_bbox_coder_decode_xywh2xyxy(a, deltas, wh_ratio_clip=1e-4, **options)
    torch.testing.assert_close(back.cpu(), gt.cpu(), rtol=1e-2, atol=0.2)
    clipped = contrib.npu_bbox_coder_decode_xywh2xyxy(
        a, deltas, max_shape=(50, 40), wh_ratio_clip=1e-4, **options
    )
    assert clipped[:, 2].max() <= 40 and clipped[:, 3].max() <= 50
    scaled = contrib.npu_bbox_coder_encode_xyxy2xywh(
        a / 10000, gt / 10000, is_normalized=True, **options
    )
    torch.testing.assert_close(scaled.cpu(), deltas.cpu(), rtol=1e-2, atol=1e-2)


def test_npu_bbox_coder_encode_yolo():
    a, gt = boxes(4), boxes(4, seed=6)
    stride = torch.tensor([8, 8, 16, 32]).npu()
    found = contrib.npu_bbox_coder_encode_yolo(a, gt, stride).cpu()
    for index in range(4):
        x0, y0, x1, y1 = a[index].tolist()
        u0, v0, u1, v1 = gt[index].tolist()
        step = stride[index].item()
        dx = ((u0 + u1) - (x0 + x1)) / 2 / step + 0.5
        dy = ((v0 + v1) - (y0 + y1)) / 2 / step + 0.5
        want = [
            min(max(dx, 1e-6), 1 - 1e-6),
            min(max(dy, 1e-6), 1 - 1e-6),
            math.log((u1 - u0) / (x1 - x0)),
            math.log((v1 - v0) / (y1 - y0)),
        ]
        torch.testing.assert_close(found[index], torch.tensor(want), rtol=1e-2, atol=1e-2)


def test_multiclass_nms():
    candidates = torch.tensor([[0.0, 0, 10, 10], [1, 1, 11, 11], [50, 50, 60, 60]]).npu()
    scores = torch.tensor([[0.9, 0.1, 0], [0.8, 0.6, 0], [0.3, 0.7, 0]]).npu()
    kept, classes = contrib.npu_multiclass_nms(candidates, scores, 0.2, 0.5, 5)
    assert kept.shape == (5, 5) and classes.shape == (5,) and kept.dtype == torch.float16
    found = {
        (round(s, 1), int(c))
        for s, c in zip(kept[:, 4].tolist(), classes.tolist(), strict=True)
        if s > 0
    }
    # of each class the best box, those that do not overlap it, and no score below 0.2
    assert found == {(0.9, 0), (0.3, 0), (0.6, 1), (0.7, 1)}
    factors = torch.tensor([1.0, 1.0, 0.5]).npu()
    weighted, _ = contrib.npu_multiclass_nms(candidates, scores, 0.2, 0.5, 5, factors)
    assert (weighted[:, 4] > 0).sum() == 3
    batch, labels = contrib.npu_batched_multiclass_nms(
        candidates[None].expand(2, 3, 4), scores[None].expand(2, 3, 3), 0.2, 0.5, 5
    )
    assert torch.equal(batch[0], kept) and torch.equal(batch[1], kept)
    assert torch.equal(labels[1], classes)


@pytest.mark.parametrize("value", [0, 1, -2.5])
def test_npu_fast_condition_index_put(value):
    x = make(5, 7)
    before, expected = x.cpu(), x.cpu()
    expected[before < 0.5] = value
    assert torch.equal(contrib.npu_fast_condition_index_put(x, x < 0.5, value).cpu(), expected)
    assert torch.equal(x.cpu(), before)


@pytest.mark.parametrize("shifts", [(-3, -3), (2, 0), (0, -5), (9, 11)])
def test_roll(shifts):
    x = make(2, 6, 5, 3, requires_grad=True)
    found = contrib.roll(x, shifts=shifts, dims=(1, 2))
    want = torch.roll(x.detach().cpu(), shifts, (1, 2))
    assert torch.equal(found.detach().cpu(), want)
    (found * torch.arange(180.0).npu().view_as(found)).sum().backward()
    weights = torch.roll(torch.arange(180.0).view(2, 6, 5, 3), tuple(-s for s in shifts), (1, 2))
    assert torch.equal(x.grad.cpu(), weights)


def test_matmul_transpose():
    a, b = make(2, 3, 4, 5, requires_grad=True), make(2, 3, 6, 5, requires_grad=True)
    found = contrib.matmul_transpose(a, b)
    found.sum().backward()
    p, q = a.detach().cpu().requires_grad_(), b.detach().cpu().requires_grad_()
    want = p @ q.mT
    want.sum().backward()
    for mine, theirs in ((found, want), (a.grad, p.grad), (b.grad, q.grad)):
        torch.testing.assert_close(mine.detach().cpu(), theirs.detach())


@pytest.mark.parametrize("rows", [128, 24])
@pytest.mark.parametrize("training", [False, True])
def test_fuse_add_softmax_dropout(rows, training):
    mask, scores = make(4, 8, rows, rows), make(4, 8, rows, rows, seed=2)
    layer = torch.nn.Dropout(0.5).train(training)
    found = function.fuse_add_softmax_dropout(training, layer, mask, scores, 16, p=0.5)
    want = torch.softmax(scores.cpu() / 4 + mask.cpu(), -1)
    kept = found.cpu() != 0
    torch.testing.assert_close(
        found.cpu()[kept], want[kept] * (2 if training else 1), rtol=1e-3, atol=1e-4
    )
    share = kept.float().mean().item()
    assert abs(share - 0.5) < 0.05 if training else share > 0.99


def test_dropout_with_byte_mask():
    x = torch.ones(100, 100).npu()
    found = function.dropout_with_byte_mask(x, 0.25)
    assert found.unique().tolist() == pytest.approx([0.0, 4 / 3])
    assert abs((found == 0).float().mean().item() - 0.25) < 0.03
    assert torch.equal(function.dropout_with_byte_mask(x, 0.25, training=False), x)


@pytest.fixture
def attention():
    torch.npu.config.allow_internal_format = True
    states = make(32, 768, dtype=torch.float16)
    mask = make(2, 1, 16, 16, dtype=torch.float16)
    kernels = [make(768, 768, dtype=torch.float16, low=-0.05, high=0.05, seed=s) for s in (1, 2, 3)]
    biases = [make(768, dtype=torch.float16, seed=s) for s in (4, 5, 6)]
    nz = [torch_npu.npu_format_cast(t, 29) for t in (states, mask, *kernels)]
    yield [*nz, *biases]
    _options.reset()


def reference(states, mask, wq, wk, wv, bq, bk, bv, scale):
    def heads(w, b):
        return (states @ w + b).view(2, 16, 12, 64).transpose(1, 2)

    q, k, v = heads(wq, bq), heads(wk, bk), heads(wv, bv)
    context = torch.softmax(q @ k.mT * scale + mask, -1) @ v
    return context.transpose(1, 2).reshape(32, 768)


def test_npu_fused_attention(attention):
    inputs = [t.requires_grad_() for t in attention]
    found = contrib.npu_fused_attention(*inputs, 0.125, 1)
    found.sum().backward()
    plain = [t.detach().cpu().float().requires_grad_() for t in inputs]
    want = reference(*plain, 0.125)
    want.sum().backward()
    torch.testing.assert_close(found.detach().cpu().float(), want.detach(), rtol=2e-2, atol=2e-2)
    for index in (0, 4, 7):  # the states, and the value's kernel and bias
        mine, theirs = inputs[index].grad.cpu().float(), plain[index].grad
        assert (mine - theirs).abs().max() <= 0.02 * theirs.abs().max()


def test_npu_fused_attention_with_layernorm(attention):
    gamma, beta = make(768, dtype=torch.float16, seed=8), make(768, dtype=torch.float16, seed=9)
    context, norm = contrib.npu_fused_attention_with_layernorm(*attention, gamma, beta, 0.125, 1)
    states, *rest = [t.cpu().float() for t in attention]
    want = torch.nn.functional.layer_norm(states, (768,), gamma.cpu().float(), beta.cpu().float())
    torch.testing.assert_close(norm.cpu().float(), want, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(
        context.cpu().float(), reference(want, *rest, 0.125), rtol=3e-2, atol=3e-2
    )


def test_fused_attention_refuses_what_the_card_refuses(attention):
    states, mask, *others = attention
    with pytest.raises(RuntimeError, match="format not matches"):
        contrib.npu_fused_attention(torch_npu.npu_format_cast(states, 2), mask, *others, 1, 1)
    with pytest.raises(RuntimeError, match="shape of hidden_states not matches"):
        contrib.npu_fused_attention(states[:30], mask, *others, 1, 1)
    with pytest.raises(RuntimeError, match="shape of attention_mask not matches"):
        contrib.npu_fused_attention(states, mask[:, :, :8], *others, 1, 1)
    with pytest.raises(RuntimeError, match="keep_prob"):
        contrib.npu_fused_attention(states, mask, *others)


@pytest.mark.parametrize(
    "call,kind,message",
    [
        (lambda: contrib.npu_iou(boxes(2), boxes(2), mode="giou"), ValueError, "mode.*'giou'"),
        (lambda: contrib.npu_giou(boxes(2), boxes(3)), ValueError, r"boxes2.*\(2, 4\).*\(3, 4\)"),
        (
            lambda: contrib.npu_bbox_coder_encode_xyxy2xywh(boxes(2), boxes(3)),
            ValueError,
            "2 boxes",
        ),
        (
            lambda: contrib.npu_bbox_coder_encode_yolo(make(2, 5), boxes(2), None),
            ValueError,
            "n, 4",
        ),
        (
            lambda: contrib.npu_bbox_coder_decode_xywh2xyxy(boxes(2), boxes(1)),
            ValueError,
            "2 boxes",
        ),
        (
            lambda: contrib.npu_fast_condition_index_put(make(2), make(2), 0),
            TypeError,
            "condition.*torch.bool.*float32",
        ),
        (lambda: contrib.roll(make(2, 3), (1, 1), (1, 2)), ValueError, "'x' must be .* 4 dim"),
        (lambda: contrib.roll(make(2, 3, 3, 1), (1,), (1, 2)), ValueError, "'shifts'"),
        (lambda: contrib.roll(make(2, 3, 3, 1), (1, 1), (0, 1)), ValueError, "dimensions 1 and 2"),
        (lambda: function.dropout_with_byte_mask(make(2), 1.5), ValueError, "'p'.*1.5"),
        (
            lambda: function.dropout_with_byte_mask(make(2), 0.5, True, True),
            ValueError,
            "'inplace'",
        ),
        (
            lambda: function.fuse_add_softmax_dropout(
                True, torch.nn.Identity(), make(1, 1, 2, 2), make(1, 1, 2, 2), 4, dim=1
            ),
            NotImplementedError,
            "'dim'.*1",
        ),
    ],
)
def test_bad_arguments(call, kind, message):
    with pytest.raises(kind, match=message):
        call()


def test_deprecations_are_said():
    with pytest.warns(FutureWarning, match="torch_npu.npu_iou"):
        contrib.npu_iou(boxes(1), boxes(1))
