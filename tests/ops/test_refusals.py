"""Wrong tensors for every operator: what does not compute is refused by the operator's own name.

Each tensor argument of an operator's first sample comes once as another type, another rank and another size.
Some of these calls are fine (a smaller batch, say); the others must say which operator and argument refuse
what, and leave what the operator writes in place as it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from tests.ops.families import on
from tests.ops.support import make
from torch_npu.ops._operator import Operator
from torch_npu.ops._registry import operators

#: folders whose wrong calls are tested by their own tests
ELSEWHERE = {
    "comm": "an operator of a group that is refused on one rank alone leaves the others waiting",
}

#: their pages ask for sizes that take seconds a call
LARGE = ("npu_mla_prolog", "npu_multi_head_attention")


NAMES = [
    name
    for name, operator in sorted(operators.items())
    if operator.folder not in ELSEWHERE and operator.samples and not name.startswith(LARGE)
]


def wrong(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    yield tensor.to(torch.complex64)
    yield tensor.flatten()[:1].reshape(())
    yield tensor.unsqueeze(-1)
    if tensor.dim():
        yield tensor.narrow(-1, 0, tensor.shape[-1] - 1)
    if tensor.dtype in (torch.int32, torch.int64):
        yield torch.full_like(tensor, 10**6)


def calls(operator: Operator) -> Iterator[tuple[Any, Any]]:
    """The first sample with one tensor after the other replaced."""
    sample = operator.samples[0]
    flat = tree_flatten(sample.inputs(make))[0]
    for place, value in enumerate(flat):
        if not isinstance(value, torch.Tensor) or value.numel() == 0:
            continue
        for bad in wrong(value):
            fresh, structure = tree_flatten(sample.inputs(make))
            fresh[place] = bad
            yield tree_unflatten(fresh, structure)


#: whose rules for other chips had missed some of these calls
OTHER_CHIPS = (
    ("npu_fused_infer_attention_score_v2", "A5"),
    ("npu_sparse_flash_attention_grad", "A5"),
)


@pytest.mark.parametrize("name,family", OTHER_CHIPS)
def test_refusals_of_other_chips(name, family):
    with on(family):
        test_refusals_name_operator_and_argument(name)


@pytest.mark.parametrize("name", NAMES)
def test_refusals_name_operator_and_argument(name):
    operator = operators[name]
    for args, kwargs in calls(operator):
        given = tree_flatten((args, kwargs))[0]
        before = [v.clone() if isinstance(v, torch.Tensor) else v for v in given]
        try:
            operator.overload(*args, **kwargs)
        except (RuntimeError, NotImplementedError) as error:
            assert f"{name.split('.')[0]}" in str(error) and "argument '" in str(error)
            for old, new in zip(before, given, strict=True):
                if isinstance(old, torch.Tensor):
                    assert torch.equal(old, new) or old.isnan().any()
