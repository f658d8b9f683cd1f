"""The fusions that come built in: which operators a graph has afterwards, by mode, and that its results stay."""

import pytest
import torch

import torch_npu
import torchair
from tests.torchair.support import randn

QUANT = "npu_add_rms_norm_quant"
DYNAMIC = "npu_add_rms_norm_dynamic_quant"
CAST = "npu_add_rms_norm_cast"
PRODUCT = "npu_transpose_batchmatmul"


def norm(*args):
    y, _, x = torch_npu.npu_add_rms_norm(*args)
    return y, x


def dynamic(x1, x2, gamma, *epsilon):
    y, x = norm(x1, x2, gamma, *epsilon)
    return *torch_npu.npu_dynamic_quant(y, smooth_scales=gamma), x


def dynamic_alone(x1, x2, gamma, *epsilon):
    return dynamic(x1, x2, gamma, *epsilon)[:2]


def dynamic_flat(x1, x2, gamma, *epsilon):
    y, x = norm(x1, x2, gamma, *epsilon)
    quantized, scale = torch_npu.npu_dynamic_quant(y.flatten(0, 1))
    return quantized, scale.view(-1, 1), x


def cast(x1, x2, gamma, *epsilon):
    y, x = norm(x1, x2, gamma, *epsilon)
    return y.to(torch.float32), y, x


def cast_rows(x1, x2, gamma, *epsilon):
    y, x = norm(x1, x2, gamma, *epsilon)
    return y.view(-1, y.shape[-1]).to(torch.float32), y, x


def static(x1, x2, gamma, *epsilon):
    y, x = norm(x1, x2, gamma, *epsilon)
    zero_points = torch.zeros(16, dtype=torch.int32, device=gamma.device)
    return torch_npu.npu_quantize(y, gamma.float(), zero_points, torch.qint8, axis=-1), x


def static_alone(x1, x2, gamma, *epsilon):
    return static(x1, x2, gamma, *epsilon)[0]


def run(function, inputs, mode="reduce-overhead", **settings):
    """The names of the graph's operators, and the results beside eager's."""
    names = set()
    config = torchair.CompilerConfig()
    config.mode = mode
    config.experimental_config.pattern_fusion_pass = settings.get("enabled", True)

    def listed(gm, inputs, config):
        for node in gm.graph.nodes:
            if isinstance(node.target, torch._ops.OpOverload):
                names.add(node.target._schema.name.partition("::")[2])

    config.post_grad_custom_post_pass = listed
    backend = torchair.get_npu_backend(compiler_config=config)
    found = torch.compile(function, backend=backend, dynamic=False)(*inputs)
    return names, found, function(*inputs)


def addends():
    gamma = randn(16, dtype=torch.float16).abs() + 0.5
    return [randn(2, 3, 16, dtype=torch.float16), randn(2, 16, 3, dtype=torch.float16).mT, gamma]


def close(found, expected):
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.dtype == theirs.dtype and mine.shape == theirs.shape
        # A fused operator does not round between its parts: integers may be neighbors.
        whole = not mine.dtype.is_floating_point
        atol = 1 if whole else 2e-3
        torch.testing.assert_close(mine.float(), theirs.float(), rtol=2e-3, atol=atol)
        assert not whole or (mine == theirs).float().mean() > 0.9


@pytest.mark.parametrize("epsilon", [(), (1e-3,)], ids=["default", "epsilon"])
@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
@pytest.mark.parametrize(
    ("function", "fused"),
    [
        (dynamic, DYNAMIC),
        (dynamic_alone, DYNAMIC),
        (dynamic_flat, DYNAMIC),
        (cast, CAST),
        (cast_rows, CAST),
    ],
)
def test_norms_in_both_modes(function, fused, mode, epsilon):
    names, found, expected = run(lambda *given: function(*given, *epsilon), addends(), mode)
    assert fused in names and "npu_add_rms_norm" not in names
    close(found, expected)


@pytest.mark.parametrize("epsilon", [(), (1e-3,)], ids=["default", "epsilon"])
@pytest.mark.parametrize("function", [static, static_alone])
def test_static_quantization_in_captured_graphs(function, epsilon):
    names, found, expected = run(lambda *given: function(*given, *epsilon), addends())
    assert QUANT in names and "npu_quantize" not in names
    close(*((found, expected) if isinstance(found, tuple) else ((found,), (expected,))))
    names, _, _ = run(lambda *given: function(*given, *epsilon), addends(), "max-autotune")
    assert QUANT not in names


@pytest.mark.parametrize("function", [dynamic, cast, static])
def test_fusions_that_are_switched_off(function):
    names, _, _ = run(function, addends(), enabled=False)
    assert "npu_add_rms_norm" in names


def test_what_the_norm_gives_otherwise_too_stays():
    def f(x1, x2, gamma):
        y, x = norm(x1, x2, gamma)
        return *torch_npu.npu_dynamic_quant(y, smooth_scales=gamma), x, y + 1

    assert "npu_add_rms_norm" in run(f, addends())[0]


PRODUCTS = {
    "result": (lambda a, b: torch.bmm(a, b).transpose(0, 1), (4, 3, 128)),
    "matmul": (lambda a, b: torch.matmul(a, b).transpose(1, 0), (4, 3, 128)),
    "both": (lambda a, b: torch.matmul(a.transpose(0, 1), b).transpose(0, 1), (3, 4, 128)),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_transposed_products_in_captured_graphs(name):
    function, shape = PRODUCTS[name]
    inputs = [randn(*shape, dtype=torch.float16), randn(4, 128, 128, dtype=torch.float16)]
    names, found, expected = run(function, inputs)
    assert PRODUCT in names and "bmm" not in names
    torch.testing.assert_close(found, expected, rtol=2e-3, atol=2e-3)
    assert PRODUCT not in run(function, inputs, "max-autotune")[0]


def test_products_of_other_sizes_stay():
    inputs = [randn(4, 3, 64, dtype=torch.float16), randn(4, 64, 128, dtype=torch.float16)]
    assert PRODUCT not in run(PRODUCTS["result"][0], inputs)[0]


def test_another_transposition_stays():
    inputs = [randn(4, 3, 128, dtype=torch.float16), randn(4, 128, 128, dtype=torch.float16)]
    assert PRODUCT not in run(lambda a, b: torch.bmm(a, b).transpose(1, 2), inputs)[0]
