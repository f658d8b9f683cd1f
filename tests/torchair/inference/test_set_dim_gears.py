"""torchair.inference.set_dim_gears: one dynamic graph for a few sizes, and no others."""

from __future__ import annotations

import pytest
import torch

import torchair
from torchair.inference import set_dim_gears

pytestmark = pytest.mark.usefixtures("uncompiled")


def model(policy="zip", **options):
    config = torchair.CompilerConfig()
    config.inference_config.dynamic_gears_merge_policy = policy
    for name, value in options.items():
        setattr(config, name, value)
    backend = torchair.get_npu_backend(compiler_config=config)
    return torch.compile(lambda a, b: a * 2 + b.sum(), backend=backend, fullgraph=True)


def ones(*shape):
    return torch.ones(shape, device="npu")


def test_one_graph_for_all_gears(counted):
    f = model()
    a, b = ones(2, 6), ones(2, 6)
    set_dim_gears(a, {0: [2, 4]})
    set_dim_gears(b, {0: [2, 4]})
    assert torch.equal(f(a, b), a * 2 + 12)
    assert torch.equal(f(ones(4, 6), ones(4, 6)), ones(4, 6) * 2 + 24)
    assert counted == ["forward"]


def test_sizes_in_no_gear_raise():
    f = model()
    a, b = ones(2, 6), ones(4, 6)
    set_dim_gears(a, {0: [2, 3, 8]})
    set_dim_gears(b, {0: [4, 5, 9]})
    f(a, b)
    with pytest.raises(RuntimeError, match=r"sizes \(3, 9\) are in no gear, .*\(2, 4\), \(3, 5\)"):
        f(ones(3, 6), ones(9, 6))


def test_product_combines_all():
    f = model("product")
    a, b = ones(2, 6), ones(4, 6)
    set_dim_gears(a, {0: [2, 3]})
    set_dim_gears(b, {0: [4, 5]})
    for first, second in ((2, 4), (3, 4), (2, 5), (3, 5)):
        assert f(
            *((a, b) if (first, second) == (2, 4) else (ones(first, 6), ones(second, 6)))
        ).shape == (first, 6)
    with pytest.raises(RuntimeError, match="in no gear"):
        f(ones(7, 6), ones(5, 6))


def test_other_sizes_are_fixed(counted):
    f = model()
    a, b = ones(2, 6), ones(2, 6)
    set_dim_gears(a, {0: [2, 4]})
    f(a, b)
    f(ones(4, 6), b)
    assert len(counted) == 1
    f(ones(4, 7), ones(2, 6))
    assert len(counted) == 2


@pytest.mark.parametrize(
    ("gears", "message"),
    [
        ({2: [2, 4]}, r"the dimension must be an int in \[0, 1\]"),
        ({"0": [2, 4]}, "the dimension must be an int"),
        ({0: 4}, "expected a list or tuple, received int"),
        ({0: [4]}, "expected 2 to 100 sizes, received 1"),
        ({0: list(range(2, 103))}, "expected 2 to 100 sizes, received 101"),
        ({0: [1, 4]}, "integers above 1, received 1"),
        ({0: [0, 4]}, "integers above 1, received 0"),
        ({0: [2, 4.0]}, "integers above 1, received 4.0"),
    ],
)
def test_refused_gears(gears, message):
    with pytest.raises(ValueError, match=message):
        set_dim_gears(ones(2, 6), gears)


def test_gears_are_given_once():
    x = ones(2, 6)
    set_dim_gears(x, {0: [2, 4]})
    set_dim_gears(x, {0: [2, 4]})
    with pytest.raises(ValueError, match="already has the gears"):
        set_dim_gears(x, {0: [2, 5]})


def test_wrong_types():
    with pytest.raises(TypeError, match="t must be a Tensor, received list"):
        set_dim_gears([1], {0: [2, 4]})
    with pytest.raises(TypeError, match="dim_gears must be a filled dict"):
        set_dim_gears(ones(2, 6), {})


def test_zip_needs_lists_of_one_length():
    a, b = ones(2, 6), ones(2, 6)
    set_dim_gears(a, {0: [2, 4]})
    set_dim_gears(b, {0: [2, 4, 5]})
    with pytest.raises(Exception, match=r"same number of sizes, received \[2, 3\]"):
        model()(a, b)


def test_at_most_a_hundred_gears():
    a, b = ones(2, 6), ones(2, 6)
    set_dim_gears(a, {0: list(range(2, 13))})
    set_dim_gears(b, {0: list(range(2, 13))})
    with pytest.raises(Exception, match="at most 100 gears are allowed, product gives 121"):
        model("product")(a, b)


def test_captured_graphs_have_no_gears():
    a, b = ones(2, 6), ones(2, 6)
    set_dim_gears(a, {0: [2, 4]})
    with pytest.raises(Exception, match="set_dim_gears works in mode max-autotune"):
        model(mode="npugraph_ex")(a, b)
