"""Operators of torch_npu on DTensor, by the part `sharding` of their definitions.

PyTorch asks a handler of its own for an operator (`OpDispatcher._custom_op_handlers`); `call` is the one of all of ours. It
chooses the placements that cost least to get to, among those that the operator can divide its work by, brings the
arguments there, keyword arguments and lists too, and runs the operator on what this rank has of them.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor._collective_utils import redistribute_cost
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor._redistribute import redistribute_local_tensor
from torch.distributed.tensor.placement_types import Placement
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing
from torch.utils import _pytree as pytree

from torch_npu.ops._operator import Operator
from torch_npu.ops._sharding import Placement as Written
from torch_npu.ops._sharding import Sharding


class Division(NamedTuple):
    """What a call does on every rank of the mesh: where its arguments go, by name, and where its results are."""

    inputs: dict[str, tuple[Placement, ...]]
    outputs: list[Any]
    divisors: dict[str, int]


def call(operator: Operator, overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The operator on DTensors."""
    values = dict(zip(operator.arguments, operator.bind(args, kwargs), strict=True))
    mesh = next(v.device_mesh for v in pytree.tree_leaves(values) if isinstance(v, DTensor))
    specs = {name: _map(functools.partial(_spec, mesh, overload), v) for name, v in values.items()}
    division = _known_division(operator, mesh, specs)
    if mesh.get_coordinate() is None:
        results = [_map(lambda spec: _nothing(spec, mesh), spec) for spec in division.outputs]
    else:
        local = [_on_this_rank(values[n], specs[n], division.inputs[n]) for n in operator.arguments]
        for name, divisor in division.divisors.items():
            local[operator.arguments.index(name)] //= divisor
        positional, by_name = operator.spread(local)
        found = overload(*positional, **by_name)
        results = list(found) if isinstance(found, tuple) else [found]
    wrapped = [
        values[name] if name is not None else _wrapped(result, spec)
        for result, spec, name in zip(results, division.outputs, _written(operator), strict=True)
    ]
    return wrapped[0] if len(wrapped) == 1 else tuple(wrapped)


def _map(function: Any, value: Any) -> Any:
    """Of a tensor or of each member of a list; tuples are something else: a description of a tensor is one."""
    return [function(member) for member in value] if isinstance(value, list) else function(value)


def _spec(mesh: DeviceMesh, overload: Any, value: Any) -> Any:
    """Where a tensor is; a tensor that is no DTensor only if PyTorch takes it for a replicated one."""
    if isinstance(value, DTensor):
        if value.device_mesh != mesh:
            raise RuntimeError(
                f"{overload}: all DTensors must be on one mesh, but one is on {mesh} and one on {value.device_mesh}"
            )
        return value._spec
    if isinstance(value, torch.Tensor):
        return DTensor._op_dispatcher._try_replicate_spec_for_scalar_tensor(overload, value, mesh)
    return value


def _written(operator: Operator) -> Iterator[str | None]:
    """For each result, the argument that it is, or None."""
    targets = iter(operator.mutable)
    for result in operator.schema.returns:
        alias = result.alias_info
        yield next(targets) if alias is not None and alias.is_write else None


# --- where everything goes ---------------------------------------------------------------------------------


def _known_division(operator: Operator, mesh: DeviceMesh, specs: dict[str, Any]) -> Division:
    """The division, made once for the same question. Sizes that are symbols, and shapes of a trace, are asked for each time."""
    question = tuple(tuple(v) if isinstance(v, list) else v for v in specs.values())
    if detect_fake_mode() is not None or any(map(_symbolic, pytree.tree_leaves(specs))):
        return _division(operator, mesh, question)
    return _kept_division(operator, mesh, question)


def _symbolic(value: Any) -> bool:
    if isinstance(value, DTensorSpec):
        return any(isinstance(size, torch.SymInt) for size in value.shape)
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


def _division(operator: Operator, mesh: DeviceMesh, question: tuple[Any, ...]) -> Division:
    """The cheapest way to divide the work; `question` has all arguments, tensors as where they are, lists as tuples."""
    values = [list(value) if isinstance(value, tuple) else value for value in question]
    specs = dict(zip(operator.arguments, values, strict=True))
    ways = [Sharding((None,) * len(operator.schema.returns), {})]
    ways += operator.by_position("sharding")(*specs.values())
    best, lowest = None, float("inf")
    for chosen in itertools.product(ways, repeat=mesh.ndim):
        inputs = {name: tuple(placement(way.inputs.get(name)) for way in chosen) for name in specs}
        if not _possible(operator, mesh, specs, chosen, inputs):
            continue
        cost = sum(
            redistribute_cost(spec, _moved(spec, inputs[name]))
            for name, found in specs.items()
            for spec in _specs(found)
        )
        if cost < lowest:
            best, lowest = (chosen, inputs), cost
    if best is None:
        where = {n: s.placements for n, s in specs.items() if isinstance(s, DTensorSpec)}
        raise RuntimeError(
            f"{operator.name}: writes {', '.join(operator.mutable)} in place, which cannot stay where the arguments are: "
            f"{where}. Redistribute them first."
        )
    chosen, inputs = best
    metas = _shapes(operator, mesh, specs)
    outputs = []
    for index, meta in enumerate(metas):
        placements = tuple(placement(way.outputs[index]) for way in chosen)
        outputs.append(
            _map(lambda m, p=placements: m and DTensorSpec(mesh, p, tensor_meta=m), meta)
        )
    divisors: dict[str, int] = {}
    for dim, way in enumerate(chosen):
        for name in way.divided:
            divisors[name] = divisors.get(name, 1) * mesh.size(dim)
    return Division(inputs, outputs, divisors)


_kept_division = functools.lru_cache(maxsize=1024)(_division)


def placement(written: Written) -> Placement:
    if written is None:
        return Replicate()
    return Shard(written) if isinstance(written, int) else Partial(written)


def _specs(value: Any) -> Iterable[DTensorSpec]:
    members = value if isinstance(value, list) else [value]
    return [member for member in members if isinstance(member, DTensorSpec)]


def _moved(spec: DTensorSpec, placements: tuple[Placement, ...]) -> DTensorSpec:
    return DTensorSpec(spec.mesh, placements, tensor_meta=spec.tensor_meta)


def _possible(
    operator: Operator,
    mesh: DeviceMesh,
    specs: dict[str, Any],
    chosen: tuple[Sharding, ...],
    inputs: dict[str, tuple[Placement, ...]],
) -> bool:
    """Every rank gets a part, an equal one where it has to be, and what is written stays where it is."""
    even = any(way.even for way in chosen)
    for name, found in specs.items():
        for spec in _specs(found):
            if name in operator.mutable and spec.placements != inputs[name]:
                return False
            shards = [1] * spec.ndim
            for dim, placement in enumerate(inputs[name]):
                if isinstance(placement, Shard):
                    shards[placement.dim] *= mesh.size(dim)
            for size, count in zip(spec.shape, shards, strict=True):
                if count > 1 and (size < count or (even and size % count)):
                    return False
    for dim, way in enumerate(chosen):
        if any(specs[name] % mesh.size(dim) for name in way.divided):
            return False
    return True


def _shapes(operator: Operator, mesh: DeviceMesh, specs: dict[str, Any]) -> list[Any]:
    """What the results are as a whole, from the operator's shape function."""
    mode = detect_fake_mode() or FakeTensorMode()
    with mode, disable_proxy_modes_tracing():

        def fake(value: Any) -> Any:
            if not isinstance(value, DTensorSpec) or value.tensor_meta is None:
                return value
            meta = value.tensor_meta
            return torch.empty_strided(
                meta.shape, meta.stride, dtype=meta.dtype, device=mesh.device_type
            )

        positional, by_name = operator.spread([_map(fake, specs[n]) for n in operator.arguments])
        found = operator.overload(*positional, **by_name)

    def meta(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return None
        return TensorMeta(value.shape, value.stride(), value.dtype)

    return [_map(meta, value) for value in (found if isinstance(found, tuple) else [found])]


# --- on this rank --------------------------------------------------------------------------------------------


def _on_this_rank(value: Any, spec: Any, placements: tuple[Placement, ...]) -> Any:
    if isinstance(value, list):
        return [_on_this_rank(v, s, placements) for v, s in zip(value, spec, strict=True)]
    if not isinstance(spec, DTensorSpec):
        return value
    local = value._local_tensor if isinstance(value, DTensor) else value
    if spec.placements == placements:
        return local
    return redistribute_local_tensor(local, spec, _moved(spec, placements))


def _nothing(spec: Any, mesh: DeviceMesh) -> Any:
    """The result of a rank outside the mesh, as PyTorch has it."""
    if spec is None:
        return None
    empty = () if spec.ndim == 0 else (0,)
    return torch.zeros(empty, dtype=spec.tensor_meta.dtype, device=mesh.device_type)


def _wrapped(result: Any, spec: Any) -> Any:
    """Numbers stay numbers of this rank, and None stays None."""
    if isinstance(result, list):
        return [_wrapped(r, s) for r, s in zip(result, spec, strict=True)]
    if not isinstance(result, torch.Tensor) or spec is None:
        return result
    return DTensor._op_dispatcher.wrap(result, spec)
