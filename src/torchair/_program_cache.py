"""AOTAutograd's cache of whole programs (TORCHINDUCTOR_CACHE_DIR): when it may be used, and what its key holds of ours.

PyTorch's key holds dynamo's graph, the inputs, and the options of AOTAutograd and Inductor. Results here depend on more:
the options of TorchAir, the chip and the settings, this package's own code. `caching` adds them. A compilation that
somebody wants to see (dumps, logs, replaced steps), or that depends on functions which no key can hold, passes it by.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule

from softnpu import __version__, chips, settings, torch_versions
from torch_npu import _plan
from torchair import patterns
from torchair.configs.compiler_config import CompilerConfig
from torchair.core.utils import EVENT_LEVEL, debug_wanted, logger
from torchair.inference._gears import Gears

#: options that ask for something to be written or seen during compilation, or for no compilation
_SEEN = (
    "debug.fx_summary.",
    "debug.data_dump.",
    "debug.graph_dump.",
    "debug.run_eagerly",
    "dump_config.",
    "export.",
)
_PLAIN = (bool, int, float, str, type(None))
_OURS = ("softnpu", "torch_npu", "torchair")


class _NotKept(Exception):
    """The program passes the cache by; the message says why."""


@contextlib.contextmanager
def caching(
    model: Any,
    config: CompilerConfig | None = None,
    decompositions: dict[Any, Callable[..., Any]] | None = None,
    gears: Gears | None = None,
    seen: str | None = None,
) -> Iterator[None]:
    """AOTAutograd's cache with our part of the key, or without the cache.

    Without `config` it is torch.compile without a backend. `seen` is a reason for which the graph must be compiled.
    """
    from torch._functorch import config as functorch_config
    from torch.compiler import config as compiler_config

    try:
        if seen is not None:
            raise _NotKept(seen)
        if not torch_versions.loads_output_code():
            raise _NotKept("this torch loads what it keeps in another way")
        key = _key(model, config, decompositions or {}, gears)
    except _NotKept as reason:
        logger.debug("the program is not kept: %s", reason)
        with functorch_config.patch(enable_autograd_cache=False):
            yield
        return
    tag = f"{compiler_config.cache_key_tag} softnpu {key}"
    with compiler_config.patch(cache_key_tag=tag):
        yield


def tagged(compile_one: Callable[..., Any]) -> Callable[..., Any]:
    """The function with the key's part of this moment: a backward pass is compiled after `caching` has ended."""
    from torch.compiler import config as compiler_config

    tag = compiler_config.cache_key_tag

    @functools.wraps(compile_one)
    def compile_tagged(*args: Any, **kwargs: Any) -> Any:
        with compiler_config.patch(cache_key_tag=tag):
            return compile_one(*args, **kwargs)

    return compile_tagged


def _key(
    model: Any,
    config: CompilerConfig | None,
    decompositions: dict[Any, Callable[..., Any]],
    gears: Gears | None,
) -> str:
    if _plan.on():
        raise _NotKept("nothing is computed")
    if debug_wanted() or logger.isEnabledFor(EVENT_LEVEL):
        raise _NotKept("a log of the compilation is asked for")
    _check_constants(model)
    parts = [
        __version__,
        _sources(),
        repr(settings.current()),
        chips.current().name,
        torch.backends.cpu.get_cpu_capability(),
        repr(sorted(torch_versions.cpu_capabilities(torch).items())),
        str(torch.npu.current_device()),
        *(f"{operator}={_name_of(function)}" for operator, function in decompositions.items()),
    ]
    if config is not None:
        parts += [f"{name}={_plain(value)}" for name, value in sorted(_options(config).items())]
        parts.append(repr(None if gears is None else (gears.dimensions, sorted(gears.allowed))))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _options(config: CompilerConfig) -> dict[str, Any]:
    changed = config.changed()
    for name in changed:
        if name.startswith(_SEEN):
            raise _NotKept(f"{name} is set")
    if patterns.has_registered():
        raise _NotKept("patterns are registered")
    registry = sys.modules.get("torchair.ge.registry")
    if registry is not None and not config.captures and registry.has_registered():
        raise _NotKept("converters are registered")
    return changed


def plain_options(config: CompilerConfig) -> dict[str, Any] | None:
    """The options that were set, if a cache can hold them."""
    changed = config.changed()
    try:
        for value in changed.values():
            _plain(value)
    except _NotKept:
        return None
    return changed


def _plain(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_plain, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_plain(k)}: {_plain(v)}' for k, v in value.items())}}}"
    if not isinstance(value, _PLAIN):
        raise _NotKept(f"an option is a {type(value).__name__}")
    return f"{type(value).__name__} {value!r}"


def _name_of(function: Any) -> str:
    """The name by which a version of torch or of this package tells what the function does."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    found: Any = sys.modules.get(str(module))
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not function or str(module).partition(".")[0] not in ("torch", *_OURS):
        raise _NotKept("a decomposition is no function of torch")
    return f"{module}.{name}"


def _check_constants(model: Any) -> None:
    """PyTorch's key holds shapes of a graph's own tensors and not their values."""
    if not isinstance(model, GraphModule):
        return
    inputs = {id(one) for one in (*model.parameters(), *model.buffers())}
    for node in model.graph.find_nodes(op="get_attr"):
        value = attrgetter(node.target)(model)
        if isinstance(value, torch.Tensor) and id(value) not in inputs:
            raise _NotKept("the graph holds tensors")


@functools.cache
def _sources() -> str:
    """Sizes and times of this package's files: a changed one may compute something else."""
    found = []
    for name in _OURS:
        package = sys.modules.get(name)
        folder = Path(str(getattr(package, "__file__", ""))).parent
        for place, _, files in os.walk(folder):
            for file in files:
                if file.endswith((".py", ".so", ".toml")):
                    path = os.path.join(place, file)
                    status = os.stat(path)
                    found.append(f"{path} {status.st_size} {status.st_mtime_ns}")
    return hashlib.sha256("\n".join(sorted(found)).encode()).hexdigest()
