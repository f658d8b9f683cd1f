"""Operators as a user writes them in PyTorch: what CPU eager and Inductor run beside ours."""

from __future__ import annotations

import torch
from torch.nn import functional

aten = torch.ops.aten

# --- norms ----------------------------------------------------------------------------------------------


def rms_norm(x, gamma):
    rstd = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)
    return (x.float() * rstd * gamma.float()).to(x.dtype), rstd


def rms_norm_backward(dy, x, gamma, rstd):
    normed, scaled = x.float() * rstd, dy.float() * gamma.float()
    dx = rstd * (scaled - normed * (scaled * normed).mean(-1, keepdim=True))
    return dx.to(x.dtype), (dy.float() * normed).sum(0)


def add_rms_norm(x1, x2, gamma):
    x = x1 + x2
    return *rms_norm(x, gamma), x


def layer_norm(x, gamma, beta):
    return functional.layer_norm(x, (x.shape[-1],), gamma, beta)


def layer_norm_backward(dy, x, gamma, beta, mean, rstd):
    last, all_three = [x.shape[-1]], [True, True, True]
    return aten.native_layer_norm_backward(dy, x, last, mean, rstd, gamma, beta, all_three)


def group_norm(x, gamma, beta):
    return functional.group_norm(x, 8, gamma, beta)


def group_norm_backward(dy, x, gamma, mean, rstd):
    n, c, *space = x.shape
    size, all_three = space[0] * space[1], [True, True, True]
    return aten.native_group_norm_backward(dy, x, mean, rstd, gamma, n, c, size, 8, all_three)


def group_norm_silu(x, gamma, beta):
    y = functional.silu(functional.group_norm(x.float(), 8, gamma.float(), beta.float()))
    return y.to(x.dtype)


def group_norm_silu_backward(dy, x, gamma, beta, mean, rstd):
    n, c, h, w = x.shape
    shape = (n, 8, c // 8 * h * w)
    normed = (x.float().view(shape) - mean.float()[..., None]) * rstd.float()[..., None]
    normed = normed.view(x.shape)
    scale = gamma.float().view(1, -1, 1, 1)
    dz = aten.silu_backward(dy.float(), normed * scale + beta.float().view(1, -1, 1, 1))
    dn = (dz * scale).view(shape)
    flat = normed.view(shape)
    inner = dn - dn.mean(-1, keepdim=True) - flat * (dn * flat).mean(-1, keepdim=True)
    dx = (inner * rstd.float()[..., None]).view(x.shape)
    results = dx, (dz * normed).sum((0, 2, 3)), dz.sum((0, 2, 3))
    return tuple(t.to(x.dtype) for t in results)


# --- activations ----------------------------------------------------------------------------------------


def swiglu(x):
    gate, value = x.chunk(2, -1)
    return functional.silu(gate) * value


def swiglu_backward(dy, x):
    gate, value = x.float().chunk(2, -1)
    s = torch.sigmoid(gate)
    slope = s * (1 + gate * (1 - s))
    return torch.cat((dy * value * slope, dy * gate * s), -1).to(x.dtype)


def fast_gelu(x):
    return x * torch.sigmoid(1.702 * x)


def fast_gelu_backward(dy, x):
    s = torch.sigmoid(1.702 * x)
    return dy * (s + 1.702 * x * s * (1 - s))


# --- rotary embedding -----------------------------------------------------------------------------------


def _turned(x):
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


def rotary(x, cos, sin):
    return x * cos + _turned(x) * sin


def rotary_backward(dy, x, cos, sin):
    a, b = (dy * sin).chunk(2, -1)
    dx = dy * cos + torch.cat((b, -a), -1)
    dcos = (dy * x).sum((0, 1), keepdim=True)
    dsin = (dy * _turned(x)).sum((0, 1), keepdim=True)
    return dx, dcos, dsin


def interleave_rope(x, cos, sin):
    x = torch.cat((x[..., ::2], x[..., 1::2]), -1)
    return rotary(x, cos, sin)


# --- softmax and loss -----------------------------------------------------------------------------------


def masked_softmax(x, mask):
    return (x.float() * 0.5).masked_fill(mask, -10000.0).softmax(-1).to(x.dtype)


def masked_softmax_backward(dy, y, mask):
    dz = y.float() * (dy.float() - (dy.float() * y.float()).sum(-1, keepdim=True))
    return (dz * 0.5).masked_fill(mask, 0).to(y.dtype)


def cross_entropy(x, target):
    log_prob = x.float().log_softmax(-1)
    return functional.nll_loss(log_prob, target).reshape(1).to(x.dtype), log_prob.to(x.dtype)


def cross_entropy_backward(dloss, log_prob, target):
    classes = torch.arange(log_prob.shape[1])
    right = (classes == target[:, None]).float()
    dx = (log_prob.float().exp() - right) * (dloss.float() / log_prob.shape[0])
    return dx.to(log_prob.dtype)


# --- quantization ---------------------------------------------------------------------------------------


def dynamic_quant(x):
    wide = x.float()
    scale = wide.abs().amax(-1, keepdim=True) / 127
    return (wide / scale).round().clamp(-128, 127).to(torch.int8), scale.squeeze(-1)


def dynamic_quant_asymmetric(x):
    wide = x.float()
    high, low = wide.amax(-1, keepdim=True), wide.amin(-1, keepdim=True)
    scale = (high - low) / 255
    offset = 127 - high / scale
    y = (wide / scale + offset).round().clamp(-128, 127).to(torch.int8)
    return y, scale.squeeze(-1), offset.squeeze(-1)


def quantize(x, scale):
    return (x.float() / scale).round().clamp(-128, 127).to(torch.int8)


def dequant_swiglu_quant(x, weight, activation):
    d = x.float() * weight * activation
    right, left = d.chunk(2, -1)
    return dynamic_quant(left * torch.sigmoid(left) * right)


# --- routing and sampling -------------------------------------------------------------------------------


def softmax_gating(x):
    return torch.softmax(x.float(), -1).topk(8, -1)[0].to(x.dtype)


def sigmoid_gating(x, bias):
    score = torch.sigmoid(x.float())
    chosen = (score + bias.float()).topk(8, -1)[1]
    weight = score.gather(1, chosen)
    return (weight / (weight.sum(-1, keepdim=True) + 1e-20)).to(x.dtype)


def permute(x, experts):
    order = experts.flatten().argsort(stable=True)
    return x[order // experts.shape[1]]


def unpermute(rows, places, weights):
    gathered = rows[places.long()].float().view(*weights.shape, -1)
    return (gathered * weights.float()[..., None]).sum(1).to(rows.dtype)


def top_k_top_p(logits, p, k):
    ordered, places = logits.sort(dim=-1, stable=True)
    least = ordered.gather(1, (logits.shape[1] - k.long())[:, None])
    ordered = ordered.masked_fill(ordered < least, -torch.inf)
    mass = ordered.float().softmax(-1).cumsum(-1)
    outside = mass <= 1 - p.float()[:, None]
    outside[:, -1] = False
    ordered = ordered.masked_fill(outside, -torch.inf)
    return torch.empty_like(ordered).scatter_(1, places, ordered)


# --- optimizers -----------------------------------------------------------------------------------------


#: of Adam: exact in every dtype, since the card rounds them to that of the weights
BETA1, BETA2, RATE, EPSILON, DECAY = 1 - 2**-3, 1 - 2**-6, 2**-10, 2**-20, 2**-7


def adam(var, m, v, grad):
    g = grad.float()
    m.copy_(m.float() + (1 - BETA1) * (g - m.float()))
    v.copy_(v.float() + (1 - BETA2) * (g * g - v.float()))
    rate = RATE * (1 - BETA2) ** 0.5 / (1 - BETA1)
    var.copy_(var.float() - rate * m.float() / (v.float().sqrt() + EPSILON))
    return var, m, v


def adam_w(var, m, v, grad):
    g = grad.float()
    m.copy_(BETA1 * m.float() + (1 - BETA1) * g)
    v.copy_(BETA2 * v.float() + (1 - BETA2) * g * g)
    root = (v.float() / (1 - BETA2**2)).sqrt() + EPSILON
    var.copy_(var.float() * (1 - RATE * DECAY) - RATE / (1 - BETA1**2) * m.float() / root)
    return var, m, v


def sgd(var, momentum, grad):
    momentum.mul_(0.9).add_(grad)
    return var.sub_(0.1 * momentum)


def rmsprop(var, v, grad):
    v.mul_(0.99).addcmul_(grad, grad, value=0.01)
    return var.sub_(0.01 * grad / (v.sqrt() + 1e-8))


def adadelta(var, v, moved, grad):
    v.mul_(0.9).addcmul_(grad, grad, value=0.1)
    step = ((moved + 1e-6) / (v + 1e-6)).sqrt() * grad
    moved.mul_(0.9).addcmul_(step, step, value=0.1)
    return var.sub_(step)
