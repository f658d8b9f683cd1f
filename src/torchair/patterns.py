"""torchair.register_replacement: rewriting of operator patterns in the FX graph, and the fusions that come built in.

Built in are upstream's default fusions around npu_add_rms_norm: with npu_dynamic_quant behind it, the same through
flatten and view, and with a cast to float32.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.fx import GraphModule

from torchair import _streams
from torchair.core.utils import logger

__all__ = ["register_replacement"]

_lock = threading.RLock()
#: what programs look for, besides what is built in
_registered: list[Callable[..., Any]] = []


def _always(match: Any) -> bool:
    return True


def register_replacement(
    search_fn: Callable[..., Any],
    replace_fn: Callable[..., Any],
    example_inputs: Iterable[Any],
    trace_fn: Callable[..., Any] | None = None,
    extra_check: Callable[[Any], bool] = _always,
    search_fn_pattern: Any = None,
    scalar_workaround: dict[str, float | int] | None = None,
    skip_duplicates: bool = False,
) -> None:
    """From now on, what computes `search_fn` in a compiled graph is replaced by what computes `replace_fn`.

    Args:
        search_fn: the operators to look for.
        replace_fn: what stands in their place, with the same arguments and results.
        example_inputs: with which both are traced.
        trace_fn: torch._inductor.pattern_matcher.fwd_only (if None) or joint_fwd_bwd.
        extra_check: of a Match, whether to replace it.
        search_fn_pattern: a pattern to match instead of `search_fn`.
        scalar_workaround: values of scalar arguments of `search_fn`, for the trace.
        skip_duplicates: a pattern that is registered already is skipped, not refused.
    """
    _register(
        search_fn,
        replace_fn,
        list(example_inputs),
        trace_fn,
        extra_check=extra_check,
        scalar_workaround=scalar_workaround,
        search_fn_pattern=search_fn_pattern,
        skip_duplicates=skip_duplicates,
    )
    _registered.append(search_fn)


def _register(
    search_fn: Callable[..., Any],
    replace_fn: Callable[..., Any],
    example_inputs: list[Any],
    trace_fn: Callable[..., Any] | None = None,
    extra_check: Callable[[Any], bool] = _always,
    **options: Any,
) -> None:
    from torch._inductor import pattern_matcher

    trace_fn = pattern_matcher.fwd_only if trace_fn is None else trace_fn
    if trace_fn in (pattern_matcher.fwd_only, pattern_matcher.joint_fwd_bwd):
        # Graphs are rewritten before Inductor takes operators apart, so patterns are not taken apart either.
        trace_fn = functools.partial(_trace_whole, trace_fn)
    with _lock:
        pattern_matcher.register_replacement(
            search_fn,
            replace_fn,
            example_inputs,
            trace_fn,
            _passes(),
            extra_check=lambda match: _one_stream(match) and extra_check(match),
            **options,
        )


def _trace_whole(
    trace_fn: Callable[..., Any], function: Callable[..., Any], args: Any, **options: Any
) -> Any:
    return trace_fn(function, args, **options | {"get_decomp_fn": dict})


def apply(gm: GraphModule) -> int:
    """Replaces every match in the graph; returns how many there were."""
    from torchair.scope import _attributes

    _register_built_in()
    for node, index in _streams.indices(gm).items():
        node.meta["stream_label"] = index
    for node, attributes in _attributes.attributes_of(gm).items():
        if _attributes.STREAM in attributes:
            node.meta["stream_label"] = attributes[_attributes.STREAM]
    count = _passes().apply(gm)
    if count:
        gm.graph.eliminate_dead_code()
        logger.debug("%s patterns were replaced", count)
    return count


def has_registered() -> bool:
    """Whether a program has registered patterns of its own."""
    return bool(_registered)


def reset() -> None:
    """Forgets every registered pattern."""
    _registered.clear()
    _passes.cache_clear()
    _register_built_in.cache_clear()


@functools.cache
def _passes() -> Any:
    from torch._inductor.pattern_matcher import PatternMatcherPass

    return PatternMatcherPass(pass_name="torchair_patterns")


def _one_stream(match: Any) -> bool:
    """A fused operator runs on one stream, so a pattern across streams must stay."""
    labels = {node.meta.get("stream_label") for node in match.nodes if node.op == "call_function"}
    return len(labels) <= 1


@functools.cache
def _register_built_in() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    npu = torch.ops.npu

    def norm_cast(x1: Any, x2: Any, gamma: Any) -> Any:
        y, _, x = npu.npu_add_rms_norm(x1, x2, gamma)
        wide = y.view(-1, y.shape[-1]).to(torch.float32)
        return wide, y, x

    def fused_norm_cast(x1: Any, x2: Any, gamma: Any) -> Any:
        wide, y, _, x = npu.npu_add_rms_norm_cast(x1, x2, gamma)
        return wide.view(-1, wide.shape[-1]), y, x

    with FakeTensorMode():
        x = functools.partial(torch.empty, (2, 3, 16), device="npu", dtype=torch.float16)
        weight = functools.partial(torch.empty, (16,), device="npu", dtype=torch.float16)
        three = (x(), x(), weight())
        rules = [(norm_cast, fused_norm_cast, three), *_with_dynamic_quant(npu, three, weight())]
        for search, replace, inputs in rules:
            _register(search, replace, list(inputs), skip_duplicates=True)


def _with_dynamic_quant(npu: Any, three: tuple[Any, ...], smooth_scale: Any) -> list[Any]:
    def norm_quant(x1: Any, x2: Any, gamma: Any, smooth: Any) -> Any:
        y, _, x = npu.npu_add_rms_norm(x1, x2, gamma)
        quantized, scale = npu.npu_dynamic_quant(y, smooth_scales=smooth)
        return quantized, x, scale

    def fused_norm_quant(x1: Any, x2: Any, gamma: Any, smooth: Any) -> Any:
        q, _, x, scale, _ = npu.npu_add_rms_norm_dynamic_quant(
            x1, x2, gamma, smooth_scale1=smooth, output_mask=[True, True]
        )
        return q, x, scale

    def norm_flat_quant(x1: Any, x2: Any, gamma: Any) -> Any:
        y, _, x = npu.npu_add_rms_norm(x1, x2, gamma)
        quantized, scale = npu.npu_dynamic_quant(y.flatten(0, 1))
        return quantized, x, scale.view(-1, 1)

    def fused_norm_flat_quant(x1: Any, x2: Any, gamma: Any) -> Any:
        q, _, x, scale, _ = npu.npu_add_rms_norm_dynamic_quant(
            x1, x2, gamma, output_mask=[True, True]
        )
        return q.flatten(0, 1), x, scale.view(-1, 1)

    return [
        (norm_quant, fused_norm_quant, (*three, smooth_scale)),
        (norm_flat_quant, fused_norm_flat_quant, three),
    ]
