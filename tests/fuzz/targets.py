"""What is called: every operator of torch_npu's registry, and PyTorch's operator database, with their samples."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from tests.fuzz import api, aten, forms
from tests.fuzz.writes import tensors
from tests.opinfo import database
from tests.ops.support import make
from torch_npu.ops._registry import operators


class Target(NamedTuple):
    """A function, how many samples it has, and its schema where it has one."""

    name: str
    function: Callable[..., Any]
    schema: Any
    samples: int
    build: Callable[[int], dict[str, Any]]  # sample -> {"args": [...], "kwargs": {...}}


def _samples(operator: Any) -> list[Any]:
    return getattr(operator, "samples", None) or getattr(
        getattr(operator, "definition", None), "samples", []
    )


@functools.lru_cache(maxsize=4096)
def _value(*shape: int, **options: Any) -> torch.Tensor:
    return make(*shape, device="cpu", **options)


@functools.cache
def heavy(name: str) -> bool:
    """Whether a call takes so long that a dozen of others could be made: drawn less often.

    The samples are made on the CPU: the process that forks workers must not start the device.
    """
    return name.startswith("npu.") and any(
        sum(t.numel() for t in tensors(on_host(name, index))) > _HEAVY
        for index in range(named(name).samples)
    )


def _make(*shape: int, requires_grad: bool = False, **options: Any) -> torch.Tensor:
    """tests.ops.support.make, which draws the same numbers for the same shape: once."""
    return _value(*shape, **options).to("npu").requires_grad_(requires_grad)


def _plain(value: Any) -> Any:
    """Tuples as lists, so that mutations can change them."""
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple, torch.Size):
        return [_plain(one) for one in value]
    return value


def on_host(name: str, index: int) -> dict[str, Any]:
    """A sample of ours with CPU tensors, for processes that must not start the device."""
    lent = _lenders().get(name)
    operator = operators[name.removeprefix("npu.")] if lent is None else lent[1]
    return _sample(operator, index, _host, lent[0] if lent is not None else None)


def _sample(operator: Any, index: int, make: Any, borrower: Any = None) -> dict[str, Any]:
    args, kwargs = _samples(operator)[index].inputs(make)
    args, kwargs = _plain(args), {k: _plain(v) for k, v in kwargs.items()}
    if borrower is not None:
        run = make is _make
        args, kwargs = [], forms.arguments(borrower._schema, operator, args, kwargs, run)
    return {"args": args, "kwargs": kwargs}


@functools.cache
def _lenders() -> dict[str, tuple[Any, Any]]:
    return {f"npu.{name}": (overload, lender) for name, overload, lender in forms.borrowers()}


def _host(*shape: int, requires_grad: bool = False, **options: Any) -> torch.Tensor:
    return _value(*shape, **options)


@functools.cache
def ours() -> dict[str, Target]:
    found = {}
    for name, operator in sorted(operators.items()):
        samples = _samples(operator)

        if samples:
            build = functools.partial(_sample, operator, make=_make)
            found[f"npu.{name}"] = Target(
                f"npu.{name}", operator.overload, operator.schema, len(samples), build
            )
    for name, (overload, lender) in _lenders().items():
        build = functools.partial(_sample, lender, make=_make, borrower=overload)
        count = len(_samples(lender))
        found[name] = Target(name, overload, overload._schema, count, build)
    return found


_MAX_SAMPLES = 8
_HEAVY = 1 << 17  # elements


@functools.cache
def pytorchs() -> dict[str, Target]:
    """PyTorch's operators: what its operator database calls with float32 on the CPU, on the npu."""
    from torch.testing._internal.common_methods_invocations import op_db

    found = {}
    for info in op_db:
        if not info.supports_dtype(torch.float32, "cpu") and not info.supports_dtype(
            torch.int64, "cpu"
        ):
            continue
        name = f"torch.{info.name}" + (
            f".{info.variant_test_name}" if info.variant_test_name else ""
        )

        @functools.cache
        def samples(of: Any = functools.partial(_of_database, info)) -> list[Any]:
            return of()

        def build(index: int, samples: Any = samples) -> dict[str, Any]:
            found = samples()
            sample = found[index % len(found)]
            args = [sample.input, *sample.args]
            return {
                "args": _moved(_plain(args)),
                "kwargs": {k: _moved(_plain(v)) for k, v in sample.kwargs.items()},
            }

        found[name] = Target(name, info.op, None, _MAX_SAMPLES, build)
    return found


@functools.cache
def direct() -> dict[str, Target]:
    """PyTorch's operators, as its dispatcher calls them."""
    found = {}
    for name, (overload, samples) in aten.recorded().items():

        def build(index: int, samples: Any = samples) -> dict[str, Any]:
            args, kwargs = samples[index]
            return {
                "args": _moved(_plain(args)),
                "kwargs": {k: _moved(_plain(v)) for k, v in kwargs.items()},
            }

        found[name] = Target(name, overload, overload._schema, len(samples), build)
    return found


@functools.cache
def others() -> dict[str, Target]:
    """What is no operator."""
    return {
        name: Target(name, function, None, api.SAMPLES, build)
        for name, (function, build) in api.functions().items()
    }


def _of_database(info: Any) -> list[Any]:
    dtype = torch.float32 if info.supports_dtype(torch.float32, "cpu") else torch.int64
    samples = []
    for sample in database.samples(info, dtype):
        samples.append(sample)
        if len(samples) == _MAX_SAMPLES:
            break
    return samples


def _moved(value: Any) -> Any:
    if (
        isinstance(value, torch.Tensor)
        and value.layout == torch.strided
        and value.device.type == "cpu"
    ):
        return value.detach().clone().to("npu")
    if isinstance(value, list):
        return [_moved(one) for one in value]
    if value == "cpu" or (isinstance(value, torch.device) and value.type == "cpu"):
        return torch.device("npu")
    return value


def named(name: str) -> Target:
    kind = name.partition(".")[0]
    return KINDS[kind]()[name]


#: by the first part of a name
KINDS: dict[str, Callable[[], dict[str, Target]]] = {
    "npu": ours,
    "torch": pytorchs,
    "aten": direct,
    "api": others,
}


def on_cpu_too(name: str) -> bool:
    """Whether the CPU device has it: then what it does there says whose fault a finding is."""
    return name.startswith(("torch.", "aten."))
