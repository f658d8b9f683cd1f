"""Operators of torch_npu on DTensor: every way to divide their work gives what one process gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.utils import _pytree as pytree

import torch_npu
import torchair
from tests.distributed import job
from tests.ops.support import make
from tests.ops.test_all_operators import inputs
from torch_npu.ops._registry import operators

#: the operators that upstream divides, with those that they are the gradients of
DIVIDED = sorted(name for name, operator in operators.items() if "sharding" in operator.parts)
#: samples that can be compared: not those that draw numbers, nor groups of depths, which are refused
COMPARED = {
    "npu_fusion_attention": (0, 1, 2, 3),
    "npu_grouped_matmul": (0, 1, 2),
}


def placements(written: Any) -> Any:
    if written is None:
        return Replicate()
    return Shard(written) if isinstance(written, int) else Partial(written)


def spread(value: Any, mesh: DeviceMesh, placement: Any) -> Any:
    """A tensor, or each tensor of a list, as this rank has it of a DTensor with the placement on every dimension."""
    if isinstance(value, (list, tuple)):
        return [spread(member, mesh, placement) for member in value]
    if not isinstance(value, torch.Tensor):
        return value
    if isinstance(
        placement, Partial
    ):  # the first rank has everything, the others nothing, or all the same
        first = mesh.get_local_rank() == 0 or placement.reduce_op == "avg"
        return DTensor.from_local(value if first else torch.zeros_like(value), mesh, [placement])
    return distribute_tensor(value, mesh, [placement] * mesh.ndim)


def whole(value: Any) -> Any:
    def full(member: Any) -> Any:
        return member.full_tensor() if isinstance(member, DTensor) else member

    return pytree.tree_map(full, value)


def assert_equal(name: str, found: Any, expected: Any) -> None:
    for one, two in zip(pytree.tree_leaves(found), pytree.tree_leaves(expected), strict=True):
        if isinstance(two, torch.Tensor) and two.numel() > 0:
            wide = two.dtype not in (torch.float16, torch.bfloat16)
            tolerance = {"rtol": 1e-4, "atol": 1e-5} if wide else {"rtol": 2e-2, "atol": 2e-2}
            torch.testing.assert_close(one, two, **tolerance, msg=lambda m: f"{name}: {m}")


def call(operator: Any, values: dict[str, Any]) -> tuple[Any, Any]:
    """The results, and the arguments that were written."""
    positional, by_name = operator.spread([values[name] for name in operator.arguments])
    found = operator.overload(*positional, **by_name)
    return found, [values[name] for name in operator.mutable]


def samples(name: str) -> list[dict[str, Any]]:
    operator = operators[name]
    found = []
    for index in range(len(operator.samples)):
        if index in COMPARED.get(name, range(len(operator.samples))):
            args, kwargs = inputs(name, index, make)
            found.append(dict(zip(operator.arguments, operator.bind(args, kwargs), strict=True)))
    return found


def copied(values: dict[str, Any]) -> dict[str, Any]:
    return pytree.tree_map(lambda v: v.clone() if isinstance(v, torch.Tensor) else v, values)


def every_way(rank: int, names: list[str]) -> dict[str, int]:
    """How many ways of each operator were kept: results divided as it says, with the values of one process."""
    mesh = init_device_mesh("npu", (torch.distributed.get_world_size(),))
    kept = dict.fromkeys(names, 0)
    for name in names:
        operator = operators[name]
        for values in samples(name):
            expected = call(operator, copied(values))
            for way in operator.by_position("sharding")(*values.values()):
                fits = [
                    t.shape[way.inputs[n]] % mesh.size() == 0
                    for n, v in values.items() if isinstance(way.inputs.get(n), int)
                    for t in pytree.tree_leaves(v) if isinstance(t, torch.Tensor)
                ]  # fmt: skip
                if not all(fits) or any(values[n] % mesh.size() for n in way.divided):
                    continue
                given = {
                    n: spread(v, mesh, placements(way.inputs.get(n)))
                    for n, v in copied(values).items()
                }
                found = call(operator, given)
                assert_equal(f"{name}, {way}", whole(found), expected)
                results = found[0] if isinstance(found[0], tuple) else [found[0]]
                for result, written in zip(results, way.outputs, strict=True):
                    for tensor in pytree.tree_leaves(result):
                        if isinstance(tensor, DTensor) and tensor.numel() > 0:
                            assert tensor.placements == (placements(written),), (name, way)
                kept[name] += 1
    return kept


def test_every_way_of_every_operator():
    kept = job.run(every_way, 2, DIVIDED)[0]
    never = {name for name, count in kept.items() if count == 0}
    assert len(DIVIDED) >= 30 and never == {"npu_gather_backward"}


def any_placement(rank: int, names: list[str]) -> None:
    """Arguments that are anywhere are brought to where the operator can use them."""
    mesh = init_device_mesh("npu", (2, 2))
    for name in names:
        operator = operators[name]
        if operator.mutable:
            continue
        for values in samples(name):
            expected = call(operator, values)
            for dim in (0, -1):
                given = {}
                for n, v in values.items():
                    tensors = [t for t in pytree.tree_leaves(v) if isinstance(t, torch.Tensor)]
                    fits = all(t.dim() > 0 and t.shape[dim] >= 4 for t in tensors)
                    where = Shard(dim % tensors[0].dim()) if tensors and fits else Replicate()
                    given[n] = spread(v, mesh, where)
                assert_equal(f"{name}, {dim}", whole(call(operator, given)), expected)


def test_arguments_are_brought_to_where_they_are_needed():
    job.run(any_placement, 4, DIVIDED)


def a_layer(x: Any, gamma: Any, weight: Any, r: Any, mask: Any) -> Any:
    """What a decoder has of fused operators: norm, rotary embedding, attention, SwiGLU."""
    normed, _ = torch_npu.npu_rms_norm(x, gamma)
    heads = (normed @ weight).view(*x.shape[:2], 4, -1)
    turned = torch_npu.npu_rotary_mul(heads, r, r)
    out = torch_npu.npu_fusion_attention(
        turned, turned, heads, 4, "BSND", scale=0.25, sparse_mode=0, atten_mask=mask
    )[0]
    return torch_npu.npu_swiglu(out, dim=-1).float().square().sum()


def gradients(rank: int, dim: int, mode: str | None) -> None:
    torch.manual_seed(3)
    shapes = {"x": (2, 8, 32), "gamma": (32,), "weight": (32, 64), "r": (1, 8, 1, 16)}
    plain = {n: (torch.randn(s) * 0.3).npu().requires_grad_() for n, s in shapes.items()}
    mask = torch.ones(8, 8).triu(1).bool().npu()
    a_layer(**plain, mask=mask).backward()
    mesh = init_device_mesh("npu", (2,))
    where = {"x": Shard(0)} if dim == 0 else {"weight": Shard(1)}
    given = {
        n: distribute_tensor(v.detach(), mesh, [where.get(n, Replicate())]).requires_grad_()
        for n, v in plain.items()
    }
    layer = a_layer
    if mode is not None:
        config = torchair.CompilerConfig()
        config.mode = mode
        backend = torchair.get_npu_backend(compiler_config=config)
        layer = torch.compile(a_layer, backend=backend, fullgraph=True)
    loss = layer(**given, mask=distribute_tensor(mask, mesh, [Replicate()]))
    loss.backward()
    for name, value in plain.items():
        torch.testing.assert_close(
            given[name].grad.full_tensor(),
            value.grad,
            rtol=1e-4,
            atol=1e-4,
            msg=lambda m, n=name: f"{n}: {m}",
        )


@pytest.mark.parametrize("dim", [0, 1], ids=["batches", "heads"])
def test_gradients(dim):
    job.run(gradients, 2, dim, None)


@pytest.mark.parametrize("mode", ["max-autotune", "reduce-overhead"])
def test_compiled(mode):
    """The mesh is an input of the graph, and no tensor."""
    job.run(gradients, 2, 1, mode)


def refused(rank: int) -> dict[str, str]:
    mesh = init_device_mesh("npu", (2,))
    divided = distribute_tensor(torch.ones(4, 8, device="npu"), mesh, [Shard(0)])
    said = {}
    calls = {
        "mixed": lambda: torch_npu.npu_rms_norm(divided, torch.ones(8, device="npu")),
        "depths": lambda: torch_npu.npu_grouped_matmul(
            [divided], [divided], group_list=divided[0].long(), split_item=3, group_type=2
        ),
        "unknown": lambda: torch_npu.npu_mish(divided),
        "check": lambda: torch_npu.npu_rms_norm(
            divided, distribute_tensor(torch.ones(7, device="npu"), mesh, [Replicate()])
        ),
    }
    for name, function in calls.items():
        with pytest.raises((RuntimeError, NotImplementedError)) as raised:
            function()
        said[name] = str(raised.value)
    return said


def test_refusals():
    said = job.run(refused, 2)[0]
    assert "got mixed torch.Tensor and DTensor" in said["mixed"] and "npu_rms_norm" in said["mixed"]
    assert "npu_grouped_matmul: group_type=2" in said["depths"]
    assert "npu_mish" in said["unknown"] and "sharding strategy" in said["unknown"]
    assert "npu_rms_norm" in said["check"] and "gamma" in said["check"]


def products(rank: int) -> None:
    """Matrix products whole, as in inference mode, and through a strategy of the program's."""
    mesh = init_device_mesh("npu", (2,))
    generator = torch.Generator().manual_seed(5)
    registry = DTensor._op_dispatcher.sharding_propagator.op_strategy_funcs
    assert torch.ops.aten.matmul.default in registry
    assert torch.ops.aten.matmul_backward.default in registry
    for first, second in [
        ((4, 6), (6, 8)),
        ((2, 4, 6), (6, 8)),
        ((6,), (6, 8)),
        ((4, 2, 4, 6), (2, 6, 8)),
        ((4, 6), (6,)),
    ]:
        a = torch.randn(first, generator=generator).npu()
        b = torch.randn(second, generator=generator).npu()
        for one in [Replicate(), *map(Shard, range(a.dim()))]:
            for two in [Replicate(), *map(Shard, range(b.dim()))]:
                with torch.inference_mode():
                    x, y = distribute_tensor(a, mesh, [one]), distribute_tensor(b, mesh, [two])
                    torch.testing.assert_close((x @ y).full_tensor(), a @ b)


def test_matrix_products():
    job.run(products, 2)


def counted_plans(rank: int) -> list[int]:
    """How many plans there are after calls of one kind, of another shape, and with another option."""
    from torch_npu.distributed.tensor import _operators

    mesh = init_device_mesh("npu", (2,))
    count = []
    for shape, dim in [((4, 8), -1), ((4, 8), -1), ((6, 8), -1), ((4, 8), 0), ((4, 8), -1)]:
        x = distribute_tensor(torch.ones(shape, device="npu"), mesh, [Shard(1 if dim == 0 else 0)])
        assert torch_npu.npu_swiglu(x, dim=dim).placements == x.placements
        count.append(_operators._kept_division.cache_info().currsize)
    return count


def test_a_plan_is_made_once():
    assert job.run(counted_plans, 2)[0] == [1, 1, 2, 3, 3]
