"""Calls that the fuzzer has found once, as it printed them: each must be answered by a result or by an error that says why."""

from __future__ import annotations

import pytest

from tests.fuzz.calls import Call
from tests.fuzz.mutations import Mutation

LENGTHS = "kwargs.actual_seq_lengths_query"

FINDINGS = [
    # a block index from data, in Python
    Call("npu.npu_advance_step_flashattn", 1, 0, (Mutation("args.2", "values", ("most", 0)),)),
    Call("npu.npu_moe_distribute_combine", 0, 0, (Mutation("args.2", "values", ("most", 0)),)),
    # loops over as many rows as a length said
    Call(
        "npu.npu_lightning_indexer", 1, 0,
        (Mutation(LENGTHS, "dtype", "int64"), Mutation(LENGTHS, "values", ("most", 0))), strict=0,
    ),
    Call(
        "npu.npu_sparse_flash_attention", 1, 0,
        (Mutation(LENGTHS, "dtype", "int64"), Mutation(LENGTHS, "values", ("most", 0))), strict=0,
    ),
    Call(
        "npu.npu_sparse_lightning_indexer_grad_kl_loss", 1, 0,
        (Mutation("kwargs.actual_seq_qlen.1", "value", 2**40),), strict=0,
    ),
    Call(
        "npu.npu_nsa_compress_grad", 0, 1448195060,
        (Mutation("args.3", "value", 1), Mutation("kwargs.actual_seq_len.0", "value", 2**31 - 1)),
        strict=0,
    ),
    # sizes that PyTorch's convolution believes
    Call("npu.npu_convolution_backward", 0, 0, (Mutation("args.4.0", "value", 2**40),), strict=0),
    Call(
        "npu.npu_conv_transpose3d_backward", 0, 0, (Mutation("args.4.0", "value", 2**40),), strict=0
    ),
    Call(
        "npu.npu_convolution_transpose_backward", 1, 0,
        (Mutation("args.4.0", "value", 2**40),), strict=0,
    ),
    Call("npu.npu_roi_alignbk", 1, 0, (Mutation("args.2.3", "value", 2**62 - 1),)),
    # a gradient for fewer images than there are
    Call("npu.npu_convolution_backward", 0, 0, (Mutation("args.1", "shape", ("zero", 0)),), strict=0),
    # no index at all
    Call("npu.npu_scatter_nd_update", 2, 0, (Mutation("args.1", "shape", ("zero", 1)),), strict=0),
    Call("npu.npu_scatter_nd_update_", 2, 0, (Mutation("args.1", "shape", ("zero", 1)),), strict=0),
    # loops over distances, windows and ranks that nobody has
    Call("npu.npu_nsa_compress_attention", 1, 0, (Mutation("args.7", "value", 2**31),), strict=0),
    Call("npu.npu_nsa_compress_grad", 0, 0, (Mutation("args.3", "value", -(2**62)),), strict=0),
    Call("npu.npu_attention_to_ffn", 1, 0, (Mutation("args.7", "value", 2**40),), strict=0),
    # sizes that 64 bits do not hold, or below zero; a division by no heads
    Call("npu.empty_with_format", 1, 0, (Mutation("args.0.0", "value", 2**62 - 1),)),
    Call(
        "npu._npu_fused_infer_attention_score_v2_infer_output", 0, 0,
        (Mutation("kwargs.num_query_heads", "value", 2**62 - 1),),
    ),
    Call("npu.npu_ps_roi_pooling_backward", 1, 0, (Mutation("args.5.1", "value", -(2**62)),)),
    Call("npu.npu_nsa_compress_attention_infer", 0, 0, (Mutation("args.4", "value", 0),)),
    # weights of one dimension, and more cells than 64 bits count, without an anchor
    Call(
        "npu.npu_moe_token_unpermute_with_routing_map", 1, 0,
        (Mutation("kwargs.probs", "shape", ("drop", 0)),),
    ),
    Call(
        "npu.npu_anchor_response_flags", 0, 0,
        (Mutation("args.3", "value", 0), Mutation("args.1.1", "value", 2**62 - 1)),
    ),
    # a list that is too short
    Call("npu.npu_quant_conv2d", 1, 0, (Mutation("kwargs.pads", "list", "drop"),)),
    # a cache with blocks of no token
    Call("npu.atb::_npu_paged_attention_splitfuse", 0, 0, (Mutation("args.1", "shape", ("zero", 1)),)),
    # a sequence without keys
    Call(
        "npu.npu_dense_lightning_indexer_softmax_lse", 1, 0,
        (Mutation("kwargs.actual_seq_klen.0", "value", 0),),
    ),
    # more candidates than a number of Python's becomes
    Call("npu.npu_ifmr", 0, 0, (Mutation("args.7", "value", 1e38),)),
    # probabilities that are NaN: nothing passes
    Call("npu.npu_top_k_top_p_sample", 0, 417715030, (Mutation("args.0", "values", ("inf", 653)),)),
    # no matrix at all
    Call("npu.npu_mhc_sinkhorn_backward", 0, 0, (Mutation("args.0", "shape", ("zero", 0)),)),
    # a meta tensor beside others
    Call(
        "npu.npu_batch_gather_matmul", 0, 433816596,
        (Mutation("args.4", "device", "cpu"), Mutation("args.2", "device", "meta")), mode="gradient",
    ),
    # a number of boxes without end
    Call("npu.npu_nms_v4", 0, 0, (Mutation("args.2", "value", float("inf")),)),
    # PyTorch's kernels, called directly: indices, sizes and counts that they trust
    Call(
        "aten.adaptive_max_pool3d_backward.grad_input", 0, 1664397642,
        (Mutation("kwargs.indices", "values", ("nan", 483)),),
    ),
    Call("aten._cdist_backward.default", 2, 0, (Mutation("args.0", "shape", ("drop", 1)),)),
    Call(
        "aten.fractional_max_pool3d_backward.grad_input", 0, 0,
        (Mutation("kwargs.indices", "shape", ("shrink", 2)),),
    ),
    Call(
        "aten.embedding_dense_backward.default", 0, 0,
        (Mutation("args.2", "value", 2), Mutation("args.4", "value", True)),
    ),
    Call("aten._segment_reduce_backward.default", 1, 0, (Mutation("args.2", "shape", ("add", 0)),)),
    Call("aten._fft_c2c.out", 2, 0, (Mutation("kwargs.dim", "list", "extend"),)),
    Call("aten.unfold_backward.out", 1, 0, (Mutation("kwargs.size", "value", 255),)),
    Call("aten.grid_sampler_2d_backward.default", 0, 0, (Mutation("args.0", "shape", ("shrink", 2)),)),
    Call("aten.copy.default", 0, 0, (Mutation("args.0", "none"),), mode="inference"),
    # a size that stays symbolic
    Call("aten._upsample_bilinear2d_aa.default", 0, 0, (Mutation("args.1.0", "value", -(2**62) - 1),)),
    # as many numbers as ranks that are not there
    Call("npu.npu_moe_distribute_combine_teardown", 1, 0, (Mutation("args.7", "value", 2**31),), strict=0),
    Call("aten._upsample_bilinear2d_aa.default", 2, 0, (Mutation("args.1.0", "value", 128),)),
    Call("aten.linalg_ldl_solve.default", 1, 0, (Mutation("args.1", "values", ("minus one", 175)),)),
    Call("aten.replication_pad2d_backward.grad_input", 2, 0, (Mutation("kwargs.self", "shape", ("double", 1)),)),
    Call("aten._pdist_backward.out", 2, 0, (Mutation("kwargs.grad", "shape", ("add", 0)),)),
    # pages without a token
    Call("npu.npu_gather_pa_kv_cache", 0, 0, (Mutation("args.1", "shape", ("zero", 1)),)),
    # lengths without a dimension
    Call(
        "npu.npu_sparse_flash_attention", 1, 0,
        (Mutation("kwargs.actual_seq_lengths_query", "shape", ("drop", 0)),),
    ),
    # tensors that PyTorch does not look at when it chooses a kernel
    Call("npu.npu_grouped_matmul.List", 1, 0, (Mutation("kwargs.bias.0", "kind", "jagged"),), strict=0),
    Call("npu.npu_grouped_matmul.List", 1, 0, (Mutation("kwargs.bias.0", "kind", "fake"),), strict=0),
    # bits of tensors that are written, behind others or with nothing returned
    Call("npu.npu_hans_encode.out", 0, 0, (Mutation("kwargs.var", "kind", "negated"),)),
    Call("npu.npu_apply_adam.out", 1, 0, (Mutation("kwargs.v", "kind", "conjugated"),), strict=0),
    Call("npu.npu_scatter_pa_kv_cache", 0, 0, (Mutation("args.2", "kind", "negated"),)),
    # a state of the generator without memory
    Call("api.torch.npu.set_rng_state", 478711, 524361011, (Mutation("args.0", "kind", "sparse"),)),
    # half of the elements of a tensor's storage, and a byte more
    Call("aten.copy.default", 0, 0, (Mutation("args.0", "storage", "cut"),)),
    # a transform of more numbers than the result holds
    Call("aten._fft_c2r.default", 2, 0, (Mutation("args.3", "value", 3),)),
    # a quantized tensor without a scale, which PyTorch makes on the way
    Call("aten.new_ones.out", 0, 0, (Mutation("kwargs.out", "kind", "quantized"),)),
    # None beside a quantized tensor, below autograd
    Call(
        "aten.sub.Tensor", 1, 0, (Mutation("args.1", "kind", "quantized"), Mutation("args.0", "none")),
        mode="inference",
    ),
    # memory that was released, at a place in a graph
    Call("api.torch.npu.print_npugraph_tensor", 661207, 0, (Mutation("args.0", "storage", "released"),)),
]  # fmt: skip


@pytest.mark.parametrize("call", FINDINGS, ids=[f"{n} {c.target}" for n, c in enumerate(FINDINGS)])
def test_found_once(call):
    outcome = call.judged()
    assert not outcome.found, outcome.message
