"""A sample of the operators as 310P and 910A: they compute there, saturate, or refuse by name."""

from __future__ import annotations

import pytest
import torch

from softnpu import _C
from tests.ops.families import on
from tests.ops.support import make
from torch_npu.ops._registry import operators

CHIPS = ("310P", "910A")


@pytest.fixture(autouse=True)
def saturating():
    """The mode that both chips start in."""
    _C.set_saturate(True)
    yield
    _C.set_saturate(False)


#: operators of each family that both chips have, or that they refuse
SAMPLED = (
    "npu_rms_norm", "npu_add_rms_norm", "npu_deep_norm", "npu_group_norm_silu", "npu_swiglu", "npu_geglu",
    "npu_gelu", "fast_gelu", "npu_silu", "npu_mish", "npu_rotary_mul", "npu_apply_rotary_pos_emb",
    "npu_interleave_rope", "npu_linear", "npu_bmmV2", "npu_quant_matmul", "npu_grouped_matmul", "npu_ffn",
    "npu_dynamic_quant", "npu_quantize", "npu_anti_quant", "npu_prompt_flash_attention",
    "npu_incre_flash_attention", "npu_fused_infer_attention_score", "npu_fusion_attention",
    "npu_moe_gating_top_k_softmax", "npu_moe_init_routing", "npu_scaled_masked_softmax", "npu_scatter_nd_update",
    "npu_top_k_top_p", "npu_confusion_transpose", "npu_dtype_cast",
)  # fmt: skip


def computed(name, family):
    """How many samples of the operator the chip computes; the others it refuses by name."""
    count = 0
    for sample in operators[name].samples:
        with on(family):
            args, kwargs = sample.inputs(make)
            try:
                found = getattr(torch.ops.npu, name)(*args, **kwargs)
            except (RuntimeError, NotImplementedError) as refused:
                assert name in str(refused), refused
                continue
        count += 1
        for result in found if isinstance(found, tuple | list) else [found]:
            if result is not None and result.is_floating_point():
                assert not result.isnan().any()
    return count


@pytest.mark.parametrize("family", CHIPS)
@pytest.mark.parametrize("name", SAMPLED)
def test_computes_or_refuses(name, family):
    computed(name, family)


@pytest.mark.parametrize("family", CHIPS)
def test_much_computes(family):
    names = ("npu_rms_norm", "npu_linear", "npu_bmmV2", "npu_dtype_cast", "npu_confusion_transpose")
    assert all(computed(name, family) for name in names)
