"""The modules of torch_npu.contrib against PyTorch and plain formulas."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

import torch_npu
from tests.ops.support import make
from tests.sanitizer import found_in
from torch_npu import contrib
from torch_npu.contrib import module
from torch_npu.contrib.module import multihead_attention as attention
from torch_npu.contrib.module._quant_noise import quant_noise

pytestmark = pytest.mark.filterwarnings("ignore:torch_npu.contrib:FutureWarning")


@pytest.mark.parametrize("name,plain", [("Mish", nn.Mish), ("SiLU", nn.SiLU), ("Swish", nn.SiLU)])
def test_activations(name, plain):
    x = make(3, 5, low=-3, high=3, requires_grad=True)
    found = getattr(contrib, name)()(x)
    found.sum().backward()
    y = x.detach().cpu().requires_grad_()
    plain()(y).sum().backward()
    torch.testing.assert_close(found.detach().cpu(), plain()(y).detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(x.grad.cpu(), y.grad, rtol=1e-4, atol=1e-5)


def test_bilstm_is_a_bidirectional_lstm():
    mine = contrib.BiLSTM(4, 3).npu()
    theirs = nn.LSTM(4, 3, bidirectional=True)
    with torch.no_grad():
        for name, value in mine.fw_rnn.named_parameters():
            getattr(theirs, name).copy_(value.cpu())
        for name, value in mine.bw_rnn.named_parameters():
            getattr(theirs, f"{name}_reverse").copy_(value.cpu())
    x = make(5, 2, 4)
    torch.testing.assert_close(mine(x).detach().cpu(), theirs(x.cpu())[0].detach())


@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_channel_shuffle(split, training):
    a, b = make(2, 3, 4, requires_grad=True), make(2, 3, 4, seed=5, requires_grad=True)
    layer = contrib.ChannelShuffle(6, split_shuffle=split).train(training)
    out = layer(a, b)
    joined = torch.cat(out, 1) if split else out
    both = torch.cat([a, b], 1).detach().cpu()
    want = both.view(2, 2, 3, 4).transpose(1, 2).reshape(2, 6, 4)
    assert torch.equal(joined.detach().cpu(), want) and isinstance(out, tuple) == split
    weights = torch.arange(48.0).view(2, 6, 4)
    (joined * weights.npu()).sum().backward()
    assert torch.equal(a.grad.cpu(), weights[:, 0::2]) and torch.equal(
        b.grad.cpu(), weights[:, 1::2]
    )
    layer(a, b)
    assert layer.checked


@pytest.mark.parametrize("smooth", [0.0, 0.1])
def test_label_smoothing(smooth):
    pred = make(4, 7, requires_grad=True)
    target = torch.tensor([1, 0, 6, 3])
    loss = contrib.LabelSmoothingCrossEntropy(7, smooth)(pred, target.npu())
    soft = torch.full((4, 7), smooth / 6)
    soft[torch.arange(4), target] = 1 - smooth
    want = -(soft * torch.log_softmax(pred.detach().cpu(), 1)).sum(1).mean()
    torch.testing.assert_close(loss.detach().cpu(), want)
    loss.backward()
    assert pred.grad.shape == pred.shape and loss.dtype == torch.float32


@pytest.mark.parametrize("bias", [True, False])
def test_deformable_convolution_without_offsets_is_a_convolution(bias):
    """At first the offsets are zero and the mask is one half."""
    layer = contrib.ModulatedDeformConv(4, 6, 3, 2, 1, bias=bias).npu()
    x = make(2, 4, 7, 7, requires_grad=True)
    out = layer(x)
    want = nn.functional.conv2d(x.detach().cpu(), layer.weight.detach().cpu() / 2, None, 2, 1)
    torch.testing.assert_close(out.detach().cpu(), want, rtol=1e-3, atol=1e-4)
    out.sum().backward()
    assert layer.weight.grad is not None and layer.conv_offset.weight.grad is not None
    assert x.grad.abs().sum() > 0
    assert contrib.DCNv2 is contrib.ModulatedDeformConv


def test_deformable_convolution_with_offsets_given():
    """An offset of one pixel to the right (y, x order) is a shifted image."""
    layer = contrib.ModulatedDeformConv(2, 3, 1, bias=False, pack=False).npu()
    x = make(1, 2, 5, 6)
    offset = torch.zeros(1, 2, 5, 6)
    offset[:, 1] = 1
    out = layer((x, offset.npu(), torch.ones(1, 1, 5, 6).npu()))
    shifted = torch.zeros(1, 2, 5, 6)
    shifted[..., :-1] = x.cpu()[..., 1:]
    want = nn.functional.conv2d(shifted, layer.weight.detach().cpu())
    torch.testing.assert_close(out.detach().cpu(), want, rtol=1e-3, atol=1e-4)


def test_drop_path():
    module.NpuDropPath.task_dict.clear()
    path = contrib.NpuDropPath(0.25)
    model = nn.Sequential(path)
    contrib.NpuDropPath.enable_droppath_ensemble(model)
    x = torch.ones(400, 3, 2).npu()
    assert torch.equal(model(x), x)  # nothing is made yet in the first step
    out = model(x)
    rows = out[:, 0, 0].cpu()
    assert torch.equal(out.cpu(), rows[:, None, None].expand(400, 3, 2))
    assert rows.unique().tolist() == pytest.approx([0.0, 4 / 3])
    assert abs((rows == 0).float().mean().item() - 0.25) < 0.1
    assert torch.equal(model.eval()(x), x) and torch.equal(contrib.NpuDropPath(0)(x), x)
    with pytest.raises(RuntimeError, match="expected a tensor, got list"):
        contrib.NpuDropPath(0.5)([1])


def test_the_numbers_of_drop_path_are_there_when_they_are_read():
    module.NpuDropPath.task_dict.clear()
    model = nn.Sequential(contrib.NpuDropPath(0.25))
    contrib.NpuDropPath.enable_droppath_ensemble(model)
    x = torch.ones(400, 3, 2).npu()
    assert found_in(lambda: [model(x) for _ in range(4)]) == []


@pytest.mark.parametrize("name", ["NpuCachedDropout", "NpuPreGenDropout"])
def test_dropouts_whose_masks_are_made_beforehand(name):
    kind = getattr(module, name)
    kind.task_dict.clear()
    layer = kind(0.3, module_name="layer")
    model = nn.Sequential(layer)
    kind.enable_dropout_ensemble(model)
    x = torch.ones(64, 128).npu()
    model(x)
    out, again = model(x), model(x)
    assert out.unique().tolist() == pytest.approx([0.0, 1 / 0.7], rel=1e-3)
    assert abs((out == 0).float().mean().item() - 0.3) < 0.05 and not torch.equal(out, again)
    mask = layer([x.shape, x.dtype, x.device])
    assert mask is None or mask.dtype == torch.uint8
    assert torch.equal(kind(0)(x), x)
    with pytest.raises(RuntimeError, match="expected a tensor or a list"):
        layer("x")
    assert contrib.NpuFairseqDropout is contrib.NpuCachedDropout


def test_pregenerated_dropout_needs_its_mask():
    module.NpuPreGenDropout.task_dict.clear()
    with pytest.raises(RuntimeError, match="there is no mask for p=0.7"):
        module.NpuPreGenDropout(0.7)(torch.ones(2).npu())
    module.NpuPreGenDropout.prob.clear()


def test_focus():
    layer = contrib.Focus(3, 5, k=3).npu().eval()
    x = make(2, 3, 8, 6)
    parts = [x[..., ::2, ::2], x[..., 1::2, ::2], x[..., ::2, 1::2], x[..., 1::2, 1::2]]
    conv = layer.conv
    want = nn.functional.leaky_relu(conv.bn(conv.conv(torch.cat(parts, 1))), 0.1)
    torch.testing.assert_close(layer(x), want)
    torch.testing.assert_close(
        conv.fuseforward(torch.cat(parts, 1)),
        nn.functional.leaky_relu(conv.conv(torch.cat(parts, 1)), 0.1),
    )


def test_color_jitter():
    image = np.random.default_rng(0).integers(0, 256, (6, 5, 3)).astype(np.uint8)
    same = (
        module.FusedColorJitter if hasattr(module, "FusedColorJitter") else contrib.FusedColorJitter
    )
    assert (
        np.abs(same()(image.astype(np.float32)) - image).max() < 1
    )  # the matrix is nearly the identity
    bright = same(brightness=(2.0, 2.0))(image.astype(np.float32))
    assert np.abs(bright - (2.0 * image).clip(0, 255)).max() < 2
    flat = same(contrast=(0.0, 0.0))(image.astype(np.float32))
    assert np.abs(flat - 127.5).max() < 1
    grey = same(saturation=(0.0, 0.0))(image.astype(np.float32))
    luma = image @ np.array([0.299, 0.587, 0.114])
    assert np.abs(grey - luma[..., None]).max() < 1
    assert same(0.1, 0.1, 0.1, 0.1).npu()(image).dtype == np.uint8
    assert same()(image[..., :1]).shape == (6, 5, 3)
    assert "brightness=[0.5, 1.5]" in repr(same(brightness=0.5))
    for bad, kind in (({"hue": 0.6}, ValueError), ({"contrast": -1}, ValueError),
                      ({"saturation": "x"}, TypeError), ({"brightness": (2, 1)}, ValueError)):  # fmt: skip
        with pytest.raises(kind, match=next(iter(bad))):
            same(**bad)
    with pytest.raises(ValueError, match="1, 3 or 4 channels"):
        same()(image[..., :2])


@pytest.mark.parametrize("name", ["LinearQuant", "LinearA8W8Quant"])
def test_quantized_linear_layers(name):
    x, weight = (
        make(3, 16, dtype=torch.int8, low=-5, high=5),
        make(32, 16, dtype=torch.int8, low=-5, high=5),
    )
    layer = getattr(contrib, name)(16, 32, bias=True, output_dtype=torch.float16).npu()
    layer.weight.data = weight
    layer.scale.data = torch.full((32,), 0.5).npu()
    layer.bias.data = torch.arange(32, dtype=torch.int32).npu()
    want = (x.cpu().int() @ weight.cpu().int().t() + torch.arange(32)) * 0.5
    torch.testing.assert_close(layer(x).cpu().float(), want.float(), rtol=1e-2, atol=1e-2)
    assert layer.offset is None and layer.pertoken_scale is None
    with pytest.raises(ValueError, match="both torch.int32 or both torch.int8"):
        layer(x.float())
    more = getattr(contrib, name)(16, 32, offset=True, pertoken_scale=True, bias=False)
    assert more.bias is None and more.offset.dtype == more.pertoken_scale.dtype == torch.float32


def test_a8w8_checks_dtypes():
    x = make(3, 16, dtype=torch.int8, low=-5, high=5)
    layer = contrib.LinearA8W8Quant(16, 32, output_dtype=torch.float64).npu()
    layer.weight.data = make(32, 16, dtype=torch.int8, low=-5, high=5)
    with pytest.raises(ValueError, match="output_dtype should be torch.int8.*float64"):
        layer(x)
    layer.scale.data = torch.ones(32, dtype=torch.float16).npu()
    with pytest.raises(ValueError, match="scale should be .*float16"):
        layer(x)


def test_linear_weight_quant():
    layer = contrib.LinearWeightQuant(
        32, 16, bias=False, antiquant_offset=True, dtype=torch.float16
    ).npu()
    weight = make(16, 32, dtype=torch.int8, low=-9, high=9)
    layer.weight.data = weight
    layer.antiquant_scale.data = make(16, dtype=torch.float16)
    layer.antiquant_offset.data = make(16, dtype=torch.float16, seed=7)
    x = make(4, 32, dtype=torch.float16)
    scaled = (weight.cpu().float() + layer.antiquant_offset.cpu().float()[:, None]) * (
        layer.antiquant_scale.cpu().float()[:, None]
    )
    want = x.cpu().float() @ scaled.t()
    torch.testing.assert_close(layer(x).cpu().float(), want, rtol=1e-2, atol=5e-2)
    assert layer.quant_scale is None and layer.bias is None


def test_a_parameter_moves_to_the_device_by_its_data():
    layer = contrib.LinearQuant(4, 2)
    layer.weight.data = make(2, 4, dtype=torch.int8, high=3)
    assert layer.weight.device.type == "npu" and layer.weight.dtype == torch.int8
    layer.weight.data = torch.zeros(3)
    assert layer.weight.device.type == "cpu" and layer.weight.shape == (3,)
    with pytest.raises(RuntimeError, match="incompatible tensor type"):
        layer.weight.data = torch.eye(2).to_sparse().npu()


def test_dropout_with_byte_mask_module():
    layer = module.DropoutWithByteMask(0.5)
    x = torch.ones(50, 50).npu()
    assert layer(x).unique().tolist() == [0.0, 2.0] and torch.equal(layer.eval()(x), x)
    with pytest.raises(ValueError, match="'p' must be from 0 to 1.*2"):
        module.DropoutWithByteMask(2)


def test_the_names_in_torch_nn():
    x = torch.ones(50, 50).npu()
    with pytest.warns(UserWarning, match="torch_npu.contrib.module.DropoutWithByteMask"):
        layer = torch.nn.DropoutWithByteMask(0.5)
    assert isinstance(layer, module.DropoutWithByteMask)
    with pytest.warns(UserWarning, match="torch_npu.contrib.function.dropout_with_byte_mask"):
        found = torch.nn.functional.dropout_with_byte_mask(x, 0.5)
    assert found.unique().tolist() == [0.0, 2.0]


@pytest.mark.parametrize("given", [False, True])
def test_prefetcher(given):
    pairs = [(torch.full((2,), float(i)), torch.tensor(i)) for i in range(3)]
    fetcher = contrib.Prefetcher(pairs, torch.npu.Stream() if given else None)
    for index in range(3):
        x, y = fetcher.next()
        assert x.device.type == y.device.type == "npu" and y.item() == index == x[0].item()
    assert fetcher.next() == fetcher.next() == (None, None)
    assert contrib.Prefetcher([]).next() == (None, None)


def test_regions():
    features = make(1, 4, 8, 8)
    rois = torch.tensor([[0.0, 1, 1, 5, 5], [0, 0, 0, 7, 3]]).npu()
    for aligned, mode in ((True, 3), (False, 0)):
        layer = contrib.ROIAlign((2, 2), 1.0, 2, aligned)
        want = torch_npu.npu_roi_align(features, rois, 1.0, 2, 2, 2, mode)
        assert torch.equal(layer(features.half(), rois), torch_npu.npu_roi_align(
            features.half().float(), rois, 1.0, 2, 2, 2, mode))  # fmt: skip
        assert torch.equal(layer(features, rois), want)
    assert "output_size=(2, 2)" in repr(layer)
    with pytest.raises(ValueError, match=r"'rois' must be of shape \(n, 5\)"):
        layer(features, rois[:, :4])
    pool = contrib.PSROIPool(2, 2, 1.0, 2, 1)
    places = torch.tensor([[[0.0], [0], [0], [7], [7]]]).npu()
    assert torch.equal(
        pool(features, places), torch_npu.npu_ps_roi_pooling(features, places, 1.0, 2, 1)
    )
    assert "group_size=2" in repr(pool)
    with pytest.raises(ValueError, match="'group_size' must be the pooled height and width"):
        contrib.PSROIPool(2, 3, 1.0, 2, 1)


@pytest.mark.parametrize(
    "name,plain,shape",
    [
        ("FastBatchNorm1d", nn.BatchNorm1d, (4, 3, 5)),
        ("FastBatchNorm2d", nn.BatchNorm2d, (4, 3, 5, 2)),
        ("FastBatchNorm3d", nn.BatchNorm3d, (4, 3, 5, 2, 2)),
        ("FastSyncBatchNorm", nn.BatchNorm2d, (4, 3, 5, 2)),
    ],
)
@pytest.mark.parametrize("momentum", [0.1, None])
def test_batch_norms_with_an_int32_count(name, plain, shape, momentum):
    mine, theirs = getattr(module, name)(3, momentum=momentum).npu(), plain(3, momentum=momentum)
    for seed in (1, 2):
        x = make(*shape, seed=seed)
        torch.testing.assert_close(
            mine(x).detach().cpu(), theirs(x.cpu()).detach(), rtol=1e-4, atol=1e-5
        )
    assert mine.num_batches_tracked.dtype == torch.int32 and mine.num_batches_tracked == 2
    torch.testing.assert_close(mine.running_var.cpu(), theirs.running_var)
    assert getattr(module, name)(3, track_running_stats=False).num_batches_tracked is None
    if name != "FastSyncBatchNorm":
        with pytest.raises(ValueError, match="expected .* input"):
            mine(make(3))


@pytest.fixture
def fused():
    attention._MHAConfig.set_fussion()
    yield
    attention._MHAConfig.use_fussion_mha = False


def heads(layer, query, key, value, mask, batch, tgt, src):
    """The layer on the host in fp32."""

    def split(x, linear, length):
        y = nn.functional.linear(x.float(), linear.weight.cpu(), linear.bias.cpu())
        return y.view(batch, length, layer.num_heads, layer.head_dim).transpose(1, 2)

    q, k, v = (
        split(query, layer.q_proj, tgt),
        split(key, layer.k_proj, src),
        split(value, layer.v_proj, src),
    )
    scores = q * layer.scaling @ k.mT + mask.float()
    out = (torch.softmax(scores, -1) @ v).transpose(1, 2).reshape(batch * tgt, -1)
    return nn.functional.linear(out, layer.out_proj.weight.cpu(), layer.out_proj.bias.cpu())


def test_multihead_attention(fused):
    layer = contrib.MultiheadAttention(256, 16, dropout=0.0, self_attention=True).npu()
    query, key, value = (make(32, 256, dtype=torch.float16, seed=s) for s in (1, 2, 3))
    mask = make(2, 16, 16, 16, dtype=torch.float16, seed=4)
    want = heads(layer, query.cpu(), key.cpu(), value.cpu(), mask.cpu(), 2, 16, 16)
    out, weights = layer(query, key, value, 2, 16, 16, mask)
    assert weights is None and out.dtype == torch.float16
    torch.testing.assert_close(out.detach().cpu().float(), want, rtol=2e-2, atol=2e-2)
    flat, _ = layer(query, key, value, 2, 16, 16, mask.reshape(32, 256))
    assert torch.equal(flat, out)
    bare, _ = layer(query, key, value, 2, 16, 16)
    want = heads(layer, query.cpu(), key.cpu(), value.cpu(), torch.zeros(1), 2, 16, 16)
    torch.testing.assert_close(bare.detach().cpu().float(), want, rtol=2e-2, atol=2e-2)
    out.sum().backward()
    assert layer.q_proj.weight.grad.dtype == torch.float32
    for option in (
        "attn_mask",
        "incremental_state",
        "static_kv",
        "before_softmax",
        "need_head_weights",
    ):
        with pytest.raises(NotImplementedError, match=f"argument '{option}' is not supported"):
            layer(query, key, value, 2, 16, 16, mask, **{option: True})
    with pytest.raises(ValueError, match="'s_len' must be 16"):
        layer(query, key, value, 2, 16, 8, mask)


def test_multihead_attention_off_by_default():
    layer = contrib.MultiheadAttention(32, 2)
    assert layer(None, None, None, 1, 1, 1) == (None, None)


def test_multihead_attention_options():
    layer = contrib.MultiheadAttention(8, 2, kdim=4, vdim=6, bias=False, add_bias_kv=True)
    assert layer.k_proj.in_features == 4 and layer.out_proj.bias is None
    assert layer.bias_k.shape == (1, 1, 8)
    state = {
        "a.in_proj_weight": torch.arange(24.0).view(24, 1),
        "a.in_proj_bias": torch.arange(24.0),
    }
    layer.upgrade_state_dict_named(state, "a")
    assert state["a.k_proj.bias"].tolist() == list(range(8, 16)) and len(state) == 6
    assert layer.apply_sparse_mask(3, 1, 1, 1) == 3
    with pytest.raises(ValueError, match="'embed_dim' must be a multiple of 3.*10"):
        contrib.MultiheadAttention(10, 3)
    with pytest.raises(ValueError, match="128 for self attention"):
        contrib.MultiheadAttention(128, 4, kdim=64, self_attention=True)
    with pytest.raises(RuntimeError, match="expected 2 or 3 dimensions"):
        attention._NpuLinear(2, 2)(torch.zeros(1, 1, 1, 2))


@pytest.mark.parametrize(
    "layer,block", [(nn.Linear(16, 6), 4), (nn.Conv2d(8, 6, 1), 4), (nn.Conv2d(4, 6, 2), 2)]
)
def test_quantization_noise(layer, block):
    layer = quant_noise(copy.deepcopy(layer), 0.5, block).npu()
    before = layer.weight.detach().cpu()
    x = make(2, 16) if isinstance(layer, nn.Linear) else make(2, layer.in_channels, 3, 3)
    layer.eval()(x)
    assert torch.equal(layer.weight.detach().cpu(), before)
    layer.train()(x)
    after = layer.weight.detach().cpu()
    kept = after != 0
    torch.testing.assert_close(after[kept], 2 * before[kept])
    size = block if before.ndim == 2 or before.shape[2] == 1 else math.prod(before.shape[2:])
    groups = kept.reshape(-1, size)
    assert torch.equal(groups.all(1), groups.any(1)) and 0 < kept.float().mean() < 1
    assert quant_noise(layer, 0, 3) is layer


def test_quantization_noise_refuses():
    for layer, block, what in ((nn.Linear(10, 2), 3, "10 input features"), (nn.Conv2d(10, 2, 1), 3, "10 input ch"),
                               (nn.Conv2d(10, 2, 3), 5, "9 points")):  # fmt: skip
        with pytest.raises(ValueError, match=what):
            quant_noise(layer, 0.1, block)
    with pytest.raises(TypeError, match="Conv1d"):
        quant_noise(nn.Conv1d(8, 8, 3), 0.1, 8)


def test_quant_conv2d_makes_its_parameters():
    layer = module.QuantConv2d(4, 6, 3, torch.float16, stride=2, padding=1, groups=2)
    assert layer.weight.shape == (6, 2, 3, 3) and layer.stride == (2, 2) and layer.offset is None
    assert layer.scale.dtype == torch.int64 and layer.bias.shape == (6,)
    assert module.QuantConv2d(4, 6, 3, torch.float16, bias=False).bias is None
    with pytest.raises(ValueError, match="'offset' must be False"):
        module.QuantConv2d(4, 6, 3, torch.float16, offset=True)
