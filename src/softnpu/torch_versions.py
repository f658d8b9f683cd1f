"""What differs between the versions of torch that softnpu runs on: nothing else in Python compares them.

In C++ the same place is csrc/torch/compat.h. Features are probed where that can be done; each entry says since when
torch has it. This module imports torch only inside functions that are given it or need it.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from softnpu._version import __version__ as _own

OLDEST, NEWEST = (2, 7, 1), (2, 14)
SUPPORTED = "2.7.1 to 2.14"

#: the CANN that a release of torch_npu was made for (upstream's COMPATIBILITY.md); of a post-release between two of
#: them that of the one before, of a torch that is not there _CANN
_CANN = "9.0.0"
_CANN_OF = {
    "2.7.1": "8.3.RC1",
    "2.7.1.post2": "8.5.0",
    "2.7.1.post4": "9.0.0",
    "2.7.1.post8": "9.1.0",
    "2.8.0": "8.3.RC1",
    "2.8.0.post2": "8.5.0",
    "2.8.0.post4": "9.0.0",
    "2.9.0": "8.5.0",
    "2.9.0.post2": "9.0.0",
    "2.9.0.post6": "9.1.0",
    "2.10.0": "9.0.0",
    "2.10.0.post4": "9.1.0",
    "2.11.0": "9.1.0",
    "2.12.0": "9.1.0",
}


def numbers(version: str) -> tuple[int, ...]:
    """(2, 10, 0) of 2.10.0+cu128."""
    found = re.match(r"\d+(\.\d+)*", version)
    if found is None:
        raise ValueError(f"expected a version such as 2.10.0, but got {version!r}.")
    return tuple(int(part) for part in found[0].split("."))


def supported(version: str) -> bool:
    """Whether softnpu is made for this torch."""
    found = numbers(version)
    return found >= OLDEST and found[:2] <= NEWEST


def check(torch: ModuleType) -> None:
    """An ImportError if this torch is too old or too new, or not the one that the extension was built with."""
    version = plain(torch.__version__)
    if not supported(version):
        raise ImportError(
            f"softnpu supports torch {SUPPORTED}, but torch {version} is installed. "
            "Install a supported one, for example: pip install torch==2.13.0"
        )
    mend = "Build it again: pip install --no-build-isolation --force-reinstall --no-deps softnpu"
    try:
        from softnpu import _C
    except ImportError as error:
        raise ImportError(
            f"softnpu's extension does not load with torch {version}. {mend}"
        ) from error
    if numbers(_C.torch_version)[:2] != numbers(version)[:2]:
        raise ImportError(
            f"softnpu's extension was built with torch {_C.torch_version}, but torch {version} is installed. {mend}"
        )


def plain(version: object) -> str:
    """2.10.0 of 2.10.0+cu128."""
    return str(version).split("+")[0]


# --- the release of torch_npu that is emulated ----------------------------------------------------------------------


def described() -> importlib.metadata.Distribution | None:
    """Our description of torch_npu for importlib.metadata (setup.py makes it), if it is installed."""
    for distribution in importlib.metadata.distributions(name="torch_npu"):
        if "softnpu" in distribution.version:
            return distribution
    return None


def release(torch_version: str) -> str:
    """The release that is emulated: torch's version, or a post-release of it that `softnpu release` has set."""
    base, found = plain(torch_version), stated()
    return found if found.startswith(f"{base}.post") else base


def stated() -> str:
    """The release that our metadata state; empty where they are not installed."""
    found = described()
    return plain(found.version) if found else ""


def full(release: str) -> str:
    """torch_npu.__version__: the release, with a local label that says by whom."""
    return f"{release}+softnpu{_own}"


def cann(release: str) -> str:
    """The CANN that goes with a release of torch_npu."""
    base, post = _split(release)
    known = {_split(each)[1]: name for each, name in _CANN_OF.items() if _split(each)[0] == base}
    return known[max(number for number in known if number <= post)] if known else _CANN


def _split(release: str) -> tuple[str, int]:
    """("2.10.0", 4) of 2.10.0.post4."""
    base, _, post = release.partition(".post")
    return base, int(post or 0)


def state_release(release: str) -> Path:
    """Makes the installed description state a release, so that a pin such as torch-npu==2.10.0.post4 is met."""
    found = described()
    if (
        found is None
        or not (folder := Path(str(found.locate_file(_folder(found.version))))).is_dir()
    ):
        raise FileNotFoundError(
            "no description of torch_npu by softnpu is installed in this environment."
        )
    base = re.sub(r"\.post\d+$", "", plain(found.version))
    if not re.fullmatch(re.escape(base) + r"(\.post\d+)?", release):
        raise ValueError(
            f"expected {base} or a post-release of it such as {base}.post4, but got {release!r}."
        )
    renamed = folder.with_name(_folder(full(release)))
    metadata = folder / "METADATA"
    metadata.write_text(
        metadata.read_text("utf-8").replace(
            f"\nVersion: {found.version}\n", f"\nVersion: {full(release)}\n"
        ),
        "utf-8",
    )
    folder.rename(renamed)
    for record in folder.parent.glob(
        "softnpu-*.dist-info/RECORD"
    ):  # so that pip removes it with softnpu
        record.write_text(
            record.read_text("utf-8").replace(f"{folder.name}/", f"{renamed.name}/"), "utf-8"
        )
    return renamed


def _folder(version: str) -> str:
    return f"torch_npu-{version}.dist-info"


# --- features -------------------------------------------------------------------------------------------------------


def cpu_capabilities(torch: ModuleType) -> dict[str, object]:
    """What the processor has, by the names of torch.cpu.get_capabilities (since 2.11)."""
    if hasattr(torch.cpu, "get_capabilities"):
        return torch.cpu.get_capabilities()
    return {
        "avx512_bf16": torch.cpu._is_avx512_bf16_supported(),
        "amx_fp16": torch.cpu._is_amx_fp16_supported(),
    }


def size_hint(size: Any) -> int | None:
    """The number behind a symbolic size, or None where it depends on values."""
    from torch.fx.experimental import symbolic_shapes

    has, hint = ("has_guarding_hint", "guarding_hint_or_throw")  # since 2.12
    if not hasattr(symbolic_shapes, has):
        has, hint = ("has_hint", "hint_int")
    return getattr(symbolic_shapes, hint)(size) if getattr(symbolic_shapes, has)(size) else None


def is_contiguous_or_false(tensor: Any) -> bool:
    """Whether a tensor is contiguous; False where that depends on values (since 2.9 torch's own)."""
    from torch import _prims_common
    from torch.fx.experimental import symbolic_shapes

    own = getattr(_prims_common, "is_contiguous_or_false", None)
    if own is not None:
        return own(tensor)
    try:
        return _prims_common.is_contiguous(tensor)
    except symbolic_shapes.GuardOnDataDependentSymNode:
        return False


def float4(torch: ModuleType) -> tuple[Any, ...]:
    """The dtype of two 4-bit floats in a byte (since 2.8); empty where torch has none."""
    found = getattr(torch, "float4_e2m1fn_x2", None)
    return () if found is None else (found,)


def pickler_options() -> tuple[Any, ...]:
    """What makes torch's pickler of graphs take every operator: an option since 2.8, before it takes them all."""
    from torch.fx import _graph_pickler

    options = getattr(_graph_pickler, "Options", None)
    return () if options is None else (options(ops_filter=None),)


def loads_output_code() -> bool:
    """Whether AOTAutograd's cache makes a loaded graph callable with the options of its compilation (since 2.8)."""
    from torch._inductor.output_code import OutputCode

    return "graph_kwargs" in inspect.signature(OutputCode.post_compile).parameters


def clear_inductor_caches() -> None:
    """Makes Inductor compile everything anew, also what this process has compiled in another folder: since 2.12 it forgets
    the modules of kernels too."""
    from torch._inductor import codecache, utils

    utils.clear_inductor_caches()
    kind = codecache.CppPythonBindingsCodeCache
    if not hasattr(kind, "_loaded_module_names"):
        suffix = f".{kind.entry_function}"
        for name in [each for each in sys.modules if each.endswith(suffix)]:
            if getattr(sys.modules[name], "key", None) == name.removesuffix(suffix):
                del sys.modules[name]


def traces_streams() -> bool:
    """Whether dynamo keeps streams, events and what their methods do in a graph (since 2.12; torch 2.10 has the table beside
    the graph, but runs methods of streams while it traces). The text is read: dynamo may be in the middle of its import."""
    found = importlib.util.find_spec("torch._dynamo.graph_bytecode_inputs")
    if found is None or found.origin is None:
        return False
    return "CURRENT_STREAM_INDEX" in Path(found.origin).read_text("utf-8")


def register_fake(holder: Any, function: Callable[..., Any], library: Any) -> None:
    """Gives an operator's entry its shape function, in a library of ours (since 2.8; before, in one of its own)."""
    if "lib" in holder.register.__code__.co_varnames:
        holder.register(function, function.__module__, lib=library, allow_override=False)
    else:
        holder.register(function, function.__module__)


#: how PyTorch's tracer calls a function of Python, a module and a function of C
_TRACED = re.compile(r".+\(\d+\): .|nn\.Module: |<built-in (function|method) ")


def activity(event: Any) -> str:
    """What kineto calls the kind of an event, asked since 2.12; before, annotations say so and functions of Python have
    names of their own kind."""
    if hasattr(event, "activity_type"):
        return event.activity_type()
    if event.is_user_annotation():
        return "user_annotation"
    name = event.name()
    if _TRACED.match(name):
        return "python_function"
    return "cpu_instant_event" if name.startswith("[") else "cpu_op"


def has_out_dtype() -> bool:
    """Whether the products of matrices take `out_dtype`. Since 2.8."""
    import torch

    return hasattr(torch.ops.aten.mm, "dtype")


def recorded(result: Any, python: bool) -> list[Any]:
    """The events of a recording, with calls of Python where they are asked for: those are among the events since 2.12,
    before in the tree of them alone."""
    events = list(result.events())
    if not python or any(activity(event) == "python_function" for event in events):
        return events
    threads = {event.start_thread_id(): event.device_resource_id() for event in events}
    waiting = list(result.experimental_event_tree())
    while waiting:
        node = waiting.pop()
        waiting += node.children
        if node.tag.name in ("PyCall", "PyCCall"):
            events.append(_PythonCall(node, threads.get(node.start_tid, 0)))
    return events


class _PythonCall:
    """A call of Python in the tree, with the questions that events answer."""

    def __init__(self, node: Any, thread: int) -> None:
        values = {
            "name": node.name,
            "activity_type": "python_function",
            "start_ns": node.start_time_ns,
            "end_ns": node.end_time_ns,
            "device_resource_id": thread,
            "sequence_nr": -1,
            "fwd_thread_id": 0,
            "scope": 0,
            "shapes": [],
            "dtypes": [],
            "stack": [],
            "flops": 0,
        }
        for question, value in values.items():
            setattr(self, question, functools.partial(_same, value))


def _same(value: Any) -> Any:
    return value
