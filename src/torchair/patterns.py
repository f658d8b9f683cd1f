"""torchair.register_replacement: rewriting of operator patterns in the FX graph; `_fusions` are those that come built in."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable
from typing import Any

from torch.fx import GraphModule

from torchair import _fusions, _streams
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
    captured: bool = False,
    **options: Any,
) -> None:
    """Among the patterns of all graphs, or among those of captured graphs."""
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
            _passes(captured),
            extra_check=lambda match: _one_stream(match) and extra_check(match),
            **options,
        )


def _trace_whole(
    trace_fn: Callable[..., Any], function: Callable[..., Any], args: Any, **options: Any
) -> Any:
    return trace_fn(function, args, **options | {"get_decomp_fn": dict})


def apply(gm: GraphModule, captures: bool) -> int:
    """Replaces every match in a graph, which may be one that is captured; returns how many there were."""
    from torch._inductor.pattern_matcher import stable_topological_sort

    from torchair.scope import _attributes

    _register_built_in()
    for node, index in _streams.indices(gm).items():
        node.meta["stream_label"] = index
    for node, attributes in _attributes.attributes_of(gm).items():
        if _attributes.STREAM in attributes:
            node.meta["stream_label"] = attributes[_attributes.STREAM]
    count = sum(_passes(captured).apply(gm) for captured in (False, True)[: 1 + captures])
    if count:
        # What stands in a pattern's place stands at its first node, perhaps before an input of a later one.
        stable_topological_sort(gm.graph)
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
def _passes(captured: bool) -> Any:
    from torch._inductor.pattern_matcher import PatternMatcherPass

    return PatternMatcherPass(pass_name="torchair_captured" if captured else "torchair_patterns")


def _one_stream(match: Any) -> bool:
    """A fused operator runs on one stream, so a pattern across streams must stay."""
    labels = {node.meta.get("stream_label") for node in match.nodes if node.op == "call_function"}
    return len(labels) <= 1


@functools.cache
def _register_built_in() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        for captured, fusions in ((False, _fusions.everywhere()), (True, _fusions.captured())):
            for one in fusions:
                _register(
                    one.search,
                    one.replace,
                    list(one.inputs),
                    extra_check=one.check,
                    captured=captured,
                    scalar_workaround=one.scalars,
                    skip_duplicates=True,
                )
