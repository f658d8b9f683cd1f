"""How cost grows with the work: the time of one unit of it at each size, beside the smallest size.

A ratio of 1 is a cost that grows as the work does. Counted is processor time of one thread, the least of three runs.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator

import torch

import torch_npu
from benchmarks.harness import Case, Goal

GROUP = "growth"
#: a unit may cost a quarter more at the largest size than at the smallest, for caches of the processor
LINEAR = Goal(1.25)
#: what is replayed is read from memory: ten thousand operators do not stay in the cache
REPLAY = Goal(1.6)
#: experts read their weights, however few tokens they have
EXPERTS = Goal(4.0)


def unit(work: Callable[[], object], units: float) -> float:
    """Seconds of one unit."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        least = float("inf")
        for _ in range(3):
            start = time.process_time()
            work()
            least = min(least, time.process_time() - start)
        return least / units
    finally:
        torch.set_num_threads(threads)


def attention(tokens: int) -> float:
    """A pair of tokens."""
    q, k, v = (torch.randn(1, 1, tokens, 64).to("npu", torch.bfloat16) for _ in range(3))
    return unit(lambda: torch_npu.npu_fusion_attention(q, k, v, 1, "BNSD", scale=0.125), tokens**2)


def attention_memory(tokens: int) -> float:
    """Bytes for a token."""
    q, k, v = (torch.randn(1, 1, tokens, 64).to("npu", torch.bfloat16) for _ in range(3))
    before = torch.npu.memory_allocated()
    torch.npu.reset_peak_memory_stats()
    torch_npu.npu_fusion_attention(q, k, v, 1, "BNSD", scale=0.125)
    return (torch.npu.max_memory_allocated() - before) / tokens


def experts(count: int) -> float:
    """A token: gating, routing and the experts' product."""
    tokens, width, chosen = 2048, 256, 8
    x = torch.randn(tokens, width).to("npu", torch.bfloat16)
    scores = torch.randn(tokens, count).npu()
    weights = torch.randn(count, width, width).to("npu", torch.bfloat16)

    def layer() -> None:
        _, expert, _ = torch_npu.npu_moe_gating_top_k_softmax(scores, None, chosen)
        rows, _, counts, _ = torch_npu.npu_moe_init_routing_v2(
            x,
            expert,
            active_num=tokens * chosen,
            expert_num=count,
            expert_tokens_num_type=1,
            expert_tokens_num_flag=True,
            active_expert_range=[0, count],
            quant_mode=-1,
        )
        torch_npu.npu_grouped_matmul(
            [rows], [weights], group_list=counts, split_item=3, group_type=0, group_list_type=1
        )

    return unit(layer, tokens)


def graph(nodes: int, replay: bool) -> float:
    """An operator of a graph, captured or replayed."""
    x = torch.ones(16, device="npu")

    def capture() -> torch.npu.NPUGraph:
        made = torch.npu.NPUGraph()
        with torch.npu.graph(made):
            y = x
            for _ in range(nodes):
                y = y + 1
        return made

    if not replay:
        return unit(capture, nodes)
    made, times = capture(), max(1, 1000 // nodes)
    return unit(lambda: [made.replay() for _ in range(times)], nodes * times)


def streams(count: int) -> float:
    """An operator, launched on one stream after the other behind an event of the one before."""
    made = [torch.npu.Stream() for _ in range(count)]
    x = torch.ones(16, device="npu")

    def launches() -> None:
        for i in range(1024):
            event = torch.npu.Event()
            event.record(made[i % count])
            with torch.npu.stream(made[(i + 1) % count]):
                event.wait()
                x + 1
        torch.npu.synchronize()

    return unit(launches, 1024)


def blocks(live: int) -> float:
    """A tensor made and dropped beside `live` others, every second of which is gone."""
    held = [torch.empty(128, device="npu") for _ in range(live)]
    del held[::2]

    def turn() -> None:
        for i in range(2000):
            torch.empty(300 + i % 7 * 100, device="npu")

    return unit(turn, 2000)


#: name, what is measured, its sizes, its goal at each, its unit
FAMILIES: list[tuple[str, Callable[[int], float], tuple[int, ...], Goal, str]] = [
    ("attention, {} tokens", attention, (1024, 4096, 16384, 32768), LINEAR, "s"),
    ("memory of attention, {} tokens", attention_memory, (1024, 4096, 16384, 32768), LINEAR, "B"),
    ("mixture of {} experts", experts, (8, 64, 512), EXPERTS, "s"),
    ("capture of {} operators", functools.partial(graph, replay=False), (100, 1000, 10000), LINEAR, "s"),
    ("replay of {} operators", functools.partial(graph, replay=True), (10, 100, 1000, 10000), REPLAY, "s"),
    ("{} streams", streams, (1, 8, 64), LINEAR, "s"),
    ("{} live blocks", blocks, (1000, 10000, 100000, 1000000), LINEAR, "s"),
]  # fmt: skip


def cases() -> Iterator[Case]:
    for name, measure, (least, *sizes), goal, kind in FAMILIES:
        smallest = functools.cache(functools.partial(measure, least))
        for size in sizes:
            yield Case(
                GROUP,
                name.format(f"{size:,}"),
                functools.partial(measure, size),
                smallest,
                goal,
                against=f"{least:,}",
                unit=kind,
                reads=True,
                once=True,
            )
