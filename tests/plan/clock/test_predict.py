"""`predict`: costs by their bounds, streams, collectives, bad input."""

import itertools
import math

import pytest

from softnpu import chips
from softnpu.plan.clock import ClockError, Topology, attention, collectives, cube, predict
from softnpu.plan.clock.constants import DEFAULT
from softnpu.plan.tasks import Task, TensorSpec

CHIP = chips.get("Ascend910B3")


def spec(*shape, dtype="bfloat16"):
    return TensorSpec(shape, dtype)


def mm(m, k, n, stream=0, **more):
    return Task("aten::mm", "kernel", 0, stream, (spec(m, k), spec(k, n)), (spec(m, n),), **more)


def add(*shape, stream=0, **more):
    return Task("aten::add", "kernel", 0, stream, (spec(*shape),) * 2, (spec(*shape),), **more)


def all_reduce(elements, ranks, peers=(), **more):
    x = (spec(elements),)
    return Task("hccl::all_reduce", "collective", 0, 9, x, x, ranks=ranks, peers=peers, **more)


def seconds(task, topology=None):
    """Of the task alone."""
    return predict([task], CHIP, topology).tasks[0].seconds / DEFAULT.in_step


def test_large_product_is_bound_by_the_cube_unit():
    found = predict([mm(8192, 8192, 8192)], CHIP)
    assert found.tasks[0].bound == "cube"
    assert found.flops == 2 * 8192**3
    least = found.flops / CHIP.peak["bfloat16"]
    assert least < found.tasks[0].seconds < 1.6 * least
    assert found.mfu == pytest.approx(least / found.seconds)


def test_product_with_one_row_is_bound_by_its_weight():
    found = predict([mm(1, 8192, 8192)], CHIP).tasks[0]
    assert found.bound == "memory"
    read = 8192 * 8192 * 2 / (CHIP.memory_bandwidth * DEFAULT.memory_efficiency)
    alone = found.seconds / DEFAULT.in_step
    assert alone == pytest.approx(read + DEFAULT.cube_start, rel=0.01)


def test_a_wave_more_costs_a_wave():
    """20 cores: 20 tiles of 128 x 256 take one wave, 21 take two."""
    one, two = seconds(mm(128 * 20, 8192, 256)), seconds(mm(128 * 21, 8192, 256))
    inner = 2 * 128 * 256 * 8192 * CHIP.cube_cores / CHIP.peak["bfloat16"] / DEFAULT.cube_efficiency
    assert one > inner
    assert two > one + 0.2 * inner


def test_operands_of_products():
    x, w, b = spec(64, 512), spec(1024, 512), spec(1024)
    plain = mm(64, 512, 1024)
    linear = Task("aten::linear", "kernel", 0, 0, (x, w, b), (spec(64, 1024),))
    addmm = Task("aten::addmm", "kernel", 0, 0, (spec(64, 1024), x, spec(512, 1024)), (spec(64, 1024),))  # fmt: skip
    bmm = Task("aten::bmm", "kernel", 0, 0, (spec(4, 64, 512), spec(4, 512, 1024)), (spec(4, 64, 1024),))  # fmt: skip
    flops = [predict([task], CHIP).flops for task in (plain, linear, addmm, bmm)]
    one = 2 * 64 * 512 * 1024
    assert flops == [one, one, one, 4 * one]


def test_elementwise_is_bound_by_bytes_or_by_its_start():
    large, small = predict([add(8192, 16384)], CHIP).tasks[0], predict([add(8)], CHIP).tasks[0]
    assert (large.bound, small.bound) == ("memory", "launch")
    least = 3 * 8192 * 16384 * 2 / CHIP.memory_bandwidth
    assert least < large.seconds < 1.6 * least


def test_embedding_reads_the_chosen_rows_alone():
    table, rows = spec(150000, 8192), spec(16, 8192)
    task = Task("aten::embedding", "kernel", 0, 0, (table, spec(16, dtype="int64")), (rows,))
    assert seconds(task) < 10e-6


def test_attention_counts_scores_and_halves_them_for_a_causal_mask():
    x = spec(1, 32, 8192, 128)

    def attend(*attributes):
        return Task("npu::npu_fusion_attention", "kernel", 0, 0, (x, x, x), (x,), attributes)

    layout = (("input_layout", "BNSD"), ("head_num", 32))
    whole, causal = seconds(attend(*layout)), seconds(attend(*layout, ("sparse_mode", 3)))
    assert whole == pytest.approx(2 * causal, rel=0.05)
    scores = 32 * 8192**2 / (CHIP.vector_cores * DEFAULT.softmax_rate)
    assert whole == pytest.approx(scores + DEFAULT.attention_start, rel=0.05)


def test_layouts_of_attention_agree():
    shapes = {
        "BNSD": (2, 8, 512, 64),
        "BSND": (2, 512, 8, 64),
        "BSH": (2, 512, 512),
        "SBH": (512, 2, 512),
    }
    found = set()
    for layout, shape in shapes.items():
        x = spec(*shape)
        attributes = (("input_layout", layout), ("head_num", 8))
        task = Task("npu::npu_fusion_attention", "kernel", 0, 0, (x, x, x), (x,), attributes)
        found.add(predict([task], CHIP).flops)
    assert found == {4 * 2 * 8 * 512 * 512 * 64}


def test_lengths_of_sequences_in_one_tensor():
    """TND: two sequences of 256 cost two times 256 x 256 scores, not 512 x 512."""
    x = spec(512, 8, 64)
    attributes = (("input_layout", "TND"), ("head_num", 8), ("actual_seq_qlen", (256, 512)), ("actual_seq_kvlen", (256, 512)))  # fmt: skip
    task = Task("npu::npu_fusion_attention", "kernel", 0, 0, (x, x, x), (x,), attributes)
    assert predict([task], CHIP).flops == 2 * 8 * 4 * 256 * 256 * 64


def test_paged_cache_counts_the_keys_of_requests():
    """Four requests of 1000 keys in a cache of 100 blocks of 128."""
    query, cache = spec(4, 16, 1, 128), spec(100, 2, 128, 128)
    attributes = (
        ("input_layout", "BNSD"), ("num_heads", 16), ("num_key_value_heads", 2), ("block_size", 128),
        ("actual_seq_lengths_kv", (1000,) * 4),
    )  # fmt: skip
    name = "npu::npu_fused_infer_attention_score"
    task = Task(name, "kernel", 0, 0, (query, cache, cache), (query,), attributes)
    assert predict([task], CHIP).flops == 4 * 16 * 1000 * 4 * 128
    whole = Task(name, "kernel", 0, 0, (query, cache, cache), (query,), attributes[:-1])
    assert predict([whole], CHIP).flops == 16 * 12800 * 4 * 128


def test_communication_that_computing_hides():
    topology = Topology.of(CHIP, 8)
    work, message = mm(8192, 8192, 8192), all_reduce(2**20, 8)
    hidden = predict([message, work], CHIP, topology)
    assert hidden.exposed_communication_seconds < 2 * DEFAULT.host_launch
    shown = predict([work, all_reduce(2**20, 8, waits=(0,))], CHIP, topology)
    assert shown.exposed_communication_seconds == pytest.approx(shown.tasks[1].seconds)
    assert shown.tasks[1].bound in ("link", "latency")


def test_all_reduce_by_hand():
    """A mesh of eight: each rank sends 1/8 to seven peers over a link each, twice."""
    size = 2**30
    part = size * 2 / 8
    wire = part / (28e9 * DEFAULT.mesh_efficiency)
    expected = wire * (1 + 1 / DEFAULT.reduce_efficiency) + 2 * 7 * DEFAULT.peer_latency
    assert seconds(all_reduce(size, 8), Topology.of(CHIP, 8)) == pytest.approx(expected)


def test_ranks_of_one_place_in_each_server_use_the_network():
    """Data parallel over two servers: 1/2 each way, by RoCE."""
    size = 2**30
    topology = Topology.of(CHIP, 16)
    wire = size * 2 / 2 / (25e9 * DEFAULT.network_efficiency)
    expected = wire * (1 + 1 / DEFAULT.reduce_efficiency) + 2 * DEFAULT.network_latency
    assert seconds(all_reduce(size, 2, (0, 8)), topology) == pytest.approx(expected)


def test_more_servers_take_longer():
    size = 2**28
    times = [seconds(all_reduce(size, n, tuple(range(n))), Topology.of(CHIP, n)) for n in (8, 64, 512)]  # fmt: skip
    assert times == sorted(times)
    assert all(math.isfinite(t) for t in times)


def test_layout_that_does_not_fill_servers():
    with pytest.raises(ClockError, match="12 ranks does not fill servers of 8"):
        Topology.of(CHIP, 12)


def test_rank_outside_of_the_world():
    with pytest.raises(ClockError, match="rank 8 is outside of a world of 8"):
        seconds(all_reduce(8, 2, (0, 8)), Topology.of(CHIP, 8))


def test_chip_without_figures():
    with pytest.raises(ClockError, match="links.node_devices of Ascend310P3"):
        Topology.of(chips.get("Ascend310P3"), 2)
    with pytest.raises(ClockError, match="no peak of Ascend310P3 for bfloat16"):
        predict([mm(8, 8, 8)], "Ascend310P3")
    with pytest.raises(ClockError, match="'Ascend1' is not in chips.toml"):
        predict([], "Ascend1")


def test_nothing_takes_no_time():
    assert predict([], CHIP).seconds == 0


def test_unknown_kind_is_named():
    with pytest.raises(ClockError, match="not 'kernels'"):
        predict([Task("aten::mm", "kernels", 0, 0, (), ())], CHIP)


CHIPS = [chips.get(name) for name in chips.names()]
SIZES = (1, 16, 17, 100, 128, 129, 512, 513, 1000, 3000, 4096, 8192)


def check_grows(costs, chip):
    """Each takes as long as the one before it, or longer, and none beats the peak."""
    times = [one.seconds for one in costs]
    assert all(after >= before * (1 - 1e-9) for before, after in itertools.pairwise(times))
    assert all(one.flops / one.seconds < chip.peak["float16"] for one in costs)


@pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: chip.name)
@pytest.mark.parametrize("which", ["m", "n", "k"])
def test_a_larger_product_never_takes_less(chip, which):
    for other in (1, 64, 300, 4096):
        sizes = {"m": other, "n": other, "k": 512 if which != "k" else other}
        products = [cube.Product(**sizes | {which: size}, dtype="float16") for size in SIZES]
        check_grows([cube.cost(one, chip, DEFAULT) for one in products], chip)


@pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: chip.name)
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("which", ["queries", "keys", "heads", "batch"])
def test_longer_attention_never_takes_less(chip, backward, which):
    sizes = {"batch": 1, "heads": 32, "kv_heads": 1, "queries": 1024, "keys": 2048}
    more = {"key_size": 128, "value_size": 128, "dtype": "float16", "backward": backward}
    shapes = [attention.Attention(**sizes | {which: size}, **more) for size in SIZES]
    check_grows([attention.cost(one, chip, DEFAULT) for one in shapes], chip)


@pytest.mark.parametrize(
    "chip", [c for c in CHIPS if "node_devices" in c.links], ids=lambda c: c.name
)
@pytest.mark.parametrize("ranks", [1, 2, 4, 8, 16, 64, 1024, 8192])
def test_a_larger_message_never_takes_less(chip, ranks):
    topology = Topology.of(chip, ranks)
    group = topology.group((), ranks)
    for kind in collectives.KINDS:
        sizes = [0, 1, 2**10, 2**15, 2**18, 2**19, 2**20, 2**22, 2**26, 2**30, 2**33]
        times = [collectives.cost(kind, n, group, topology, DEFAULT).seconds for n in sizes]
        assert times == sorted(times) and times[0] > 0


def fused(name, inputs, outputs, ranks=8, **attributes):
    attributes = tuple(attributes.items())
    return Task(f"npu::{name}", "kernel", 0, 0, inputs, outputs, attributes, ranks=ranks)


def test_a_product_with_a_collective_takes_the_longer_of_both():
    topology = Topology.of(CHIP, 8)
    x, w = spec(4096, 8192), spec(8192, 1024)
    product = seconds(mm(4096, 8192, 1024))
    alone = fused("npu_mm_all_reduce_base", (x, w), (spec(4096, 1024),), ranks=1)
    assert seconds(alone) == pytest.approx(product)
    both = seconds(fused("npu_mm_all_reduce_base", (x, w), (spec(4096, 1024),)), topology)
    reduced = seconds(all_reduce(4096 * 1024, 8), topology)
    assert both == pytest.approx(max(product, reduced))
    wide = seconds(fused("npu_mm_all_reduce_base", (spec(4096, 16), spec(16, 8192)), (spec(4096, 8192),)), topology)  # fmt: skip
    assert wide == pytest.approx(seconds(all_reduce(4096 * 8192, 8), topology))


def test_flops_of_products_over_ranks():
    """Gathered rows count, and so do those that the result no longer has."""
    topology = Topology.of(CHIP, 8)
    for name, given, made, flops in (
        ("npu_all_gather_base_mm", (512, 2048), (4096, 1024), 2 * 4096 * 2048 * 1024),
        ("npu_mm_reduce_scatter_base", (4096, 2048), (512, 1024), 2 * 4096 * 2048 * 1024),
    ):
        task = fused(name, (spec(*given), spec(2048, 1024)), (spec(*made),))
        assert predict([task], CHIP, topology).flops == flops


def test_dispatch_and_combine_send_each_token_to_its_experts():
    a3 = chips.get("Ascend910_9391")
    topology = Topology.of(a3, 64)
    ids = TensorSpec((128, 8), "int32")
    x, many = spec(128, 7168), spec(1024, 7168)
    send = fused("npu_moe_distribute_dispatch_v2", (x, ids), (many,), ranks=64)
    back = fused("npu_moe_distribute_combine_v2", (many, ids), (x,), ranks=64)
    wanted = collectives.exchange(128 * 8 * 7168 * 2, 64, topology, DEFAULT, normal=False).seconds
    for task in (send, back):
        found = predict([task], a3, topology).tasks[0].seconds / DEFAULT.in_step
        assert found == pytest.approx(wanted)
