"""torch.compile(f) without a backend, on npu tensors: Inductor's pipeline, whose last step compiles for the host."""

from __future__ import annotations

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
    from torch._functorch import config as functorch_config
    from torch._inductor import compile_fx as inductor

    # Graphs are captured by the npu backends; random numbers are the device generator's, so they stay operators.
    settings = patches | {"triton.cudagraphs": False, "fallback_random": True}
    # Compiled programs hold device memory, so the cache of whole autograd programs cannot keep them.
    with functorch_config.patch(enable_autograd_cache=False):
        return inductor.compile_fx(model, inputs, inner_compile=_inner, config_patches=settings)


def _inner(gm: GraphModule, example_inputs: Sequence[Any], **options: Any) -> Any:
    from torch._guards import detect_fake_mode
    from torch._subclasses.fake_tensor import FakeTensorMode

    fake_mode = detect_fake_mode(list(example_inputs)) or FakeTensorMode(allow_non_fake_inputs=True)
    _streams.untie(gm)
    if needs_streams(gm) or _plan.on():  # Inductor's code computes
        return boxed(Eager(gm))
    output = next(iter(reversed(gm.graph.nodes)))
    kept = ("static_input_idxs", "is_backward", "is_inference")
    return compile_on_host(
        gm,
        example_inputs,
        fake_mode,
        visible=output.meta.get("user_visible_output_idxs"),
        **{name: options[name] for name in kept if name in options},
    )
