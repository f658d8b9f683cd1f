"""npugraph_ex as a package of its own: as vllm-ascend configures, wraps and caches it."""

from __future__ import annotations

import importlib
import sys

import pytest
import torch

import npugraph_ex
import npugraph_ex.npu_fx_compiler as nfx
import torchair
from npugraph_ex.configs.compiler_config import _process_kwargs_options
from npugraph_ex.core._concrete_graph import ValuePack


def test_it_is_torchair_s_compiler():
    assert nfx is torchair.npu_fx_compiler
    assert ValuePack is torchair.core._concrete_graph.ValuePack
    assert importlib.reload(sys.modules["npugraph_ex.npu_fx_compiler"]) is nfx


def test_options_are_attributes():
    config = npugraph_ex.CompilerConfig()
    assert config.inplace_pass.raw is True and config.clone_input.raw is True
    options = {"force_eager": True, "inplace_pass": False, "clone_input": False}
    _process_kwargs_options(config, {"options": options})
    nested = config.nested()
    assert nested.mode.raw == "npugraph_ex" and nested.debug.run_eagerly
    assert nested.debug.aclgraph.disable_reinplace_inplaceable_ops_pass
    assert config.as_dict()[0]["force_eager"] is True
    with pytest.raises(ValueError, match="has no option nothing, all options are"):
        _process_kwargs_options(config, {"options": {"nothing": 1}})
    with pytest.raises(ValueError, match="expected one of"):
        config.force_eager = 3


@pytest.mark.parametrize("eager", [True, False])
def test_compile(eager):
    config = npugraph_ex.CompilerConfig()
    config.force_eager = eager
    backend = npugraph_ex.get_npu_backend(compiler_config=config)

    def function(x):
        return torch.softmax(x * 2, -1)

    x = torch.randn(4, 8, device="npu")
    compiled = torch.compile(function, backend=backend, dynamic=False)
    torch.testing.assert_close(compiled(x), function(x))
    torch.testing.assert_close(compiled(x + 1), function(x + 1))


def test_another_configuration_is_refused():
    with pytest.raises(
        TypeError, match="must be an npugraph_ex.CompilerConfig, received CompilerC"
    ):
        npugraph_ex.get_npu_backend(compiler_config=torchair.CompilerConfig())
    with pytest.raises(TypeError, match="get_compiler: compiler_config"):
        npugraph_ex.get_compiler({})
