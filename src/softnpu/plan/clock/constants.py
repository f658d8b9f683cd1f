"""The constants of the clock that no data sheet gives.

Most are set on one half of the published measurements (`tools/plan_constants.py`); docs/plan-clock.md says which
measurement was used, and how far the others are off. Nothing here belongs to one operator, chip or model alone; what a
chip or a link can do at most is in chips.toml.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Constants:
    """Efficiencies are parts of the published figure, times are seconds."""

    # --- cube: of the peak in the inner loop of a tile; bytes a cycle from the L2 cache to a core; start and end of a kernel
    cube_efficiency: float = 0.82
    core_load: float = 128.0
    cube_start: float = 6.9e-6
    # --- memory: of the HBM bandwidth in sequence; times that for what fits in half of the L2 cache
    memory_efficiency: float = 0.83
    cache_speedup: float = 2.0
    # --- vector: start of an elementwise kernel, and of one with several passes over a row (norms, rotations, quantizing);
    # sorted elements a second and core; of the HBM bandwidth, kernels compiled by Triton
    vector_start: float = 2.1e-6
    row_start: float = 19.0e-6
    sort_rate: float = 0.31e9
    triton_efficiency: float = 0.10
    # --- attention: scores a second and vector core; products, of the peak; keys and values, of the HBM bandwidth; vector
    # work of the backward pass, in forward passes
    softmax_rate: float = 7.4e9
    attention_cube: float = 0.65
    attention_memory: float = 0.45
    attention_start: float = 12.0e-6
    attention_backward: float = 2.0
    # --- links: collectives, of a switch's port and of direct links (149 of 196 GB/s in an all-gather of 8 Ascend 910B,
    # README of limulidae, a public test of links); of that, where data are added on the way; copies; RoCE (22.6 of
    # 25 GB/s, hicann/hixl)
    link_efficiency: float = 0.88
    mesh_efficiency: float = 0.76
    reduce_efficiency: float = 0.86
    copy_efficiency: float = 0.69
    network_efficiency: float = 0.90
    # --- latencies: up to so many bytes for each peer, cores write to their peers themselves; above, engines do, one peer
    # after another; a step between servers; dispatch or combine of tokens, and for each rank in normal mode; a copied block
    small_message: float = 256 * 1024.0
    small_latency: float = 15.0e-6
    peer_latency: float = 4.4e-6
    network_latency: float = 12.0e-6
    exchange_start: float = 53.0e-6
    exchange_peer: float = 23.5e-6
    copy_start: float = 3.4e-6
    # --- host: a launch while others are queued; from a launch to knowing that an idle device is done, beside the kernel; an
    # operator of PyTorch until its launch, where nothing is queued
    host_launch: float = 8.0e-6
    host_sync: float = 28.0e-6
    host_dispatch: float = 20.0e-6
    # --- programs: a task in a step over the same task alone (cold caches, clocks under load, slower ranks)
    in_step: float = 1.22


DEFAULT = Constants()
