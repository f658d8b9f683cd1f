"""torch.compile(f) without a backend, on npu tensors: Inductor's pipeline, whose last step compiles for the host."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from torch.fx import GraphModule

from torch_npu import _plan
from torchair import _streams
from torchair._calls import boxed
from torchair._eager import Eager, needs_streams
from torchair._host.run import compile_on_host


def compile_fx(model: Any, inputs: Sequence[Any], patches: dict[str, Any]) -> Any:
    """Inductor's compile_fx with `_inner` for its own compiler of one graph."""
    from torch._inductor import compile_fx as inductor

    from torchair._program_cache import caching, tagged

    # Graphs are captured by the npu backends; random numbers are the device generator's, so they stay operators.
    settings = patches | {"triton.cudagraphs": False, "fallback_random": True}
    with caching(model):
        return inductor.compile_fx(
            model, inputs, inner_compile=tagged(_inner), config_patches=settings
        )


def _inner(gm: GraphModule, example_inputs: Sequence[Any], **options: Any) -> Any:
    from torch._guards import detect_fake_mode
    from torch._subclasses.fake_tensor import FakeTensorMode

    from torchair._output_code import output_code

    _streams.untie(gm)
    if needs_streams(gm) or _plan.on():  # Inductor's code computes
        run: Any = boxed(Eager(gm))
    else:
        kept = ("static_input_idxs", "is_backward", "is_inference")
        run = compile_on_host(
            gm,
            example_inputs,
            detect_fake_mode(list(example_inputs)) or FakeTensorMode(allow_non_fake_inputs=True),
            visible=next(iter(reversed(gm.graph.nodes))).meta.get("user_visible_output_idxs"),
            **{name: options[name] for name in kept if name in options},
        )
    return output_code(run, gm, example_inputs, functools.partial(_inner, **options))
