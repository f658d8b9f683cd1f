"""Products with communication: a matrix product, the sum over the ranks, a residual and its RMS normalization."""

from __future__ import annotations

import torch

from torch_npu.aclnn import aclnn

_HEAD = "Tensor x1, Tensor x2, Tensor? bias"
_TAIL = "Tensor gamma, float epsilon, str group, str reduce_op, int comm_turn, int stream_mode"


def _product(x1, x2, bias, group, reduce_op, comm_turn, **quantized):
    return torch.ops.npu.npu_mm_all_reduce_base(
        x1, x2, group, reduce_op=reduce_op, bias=bias, comm_turn=comm_turn, **quantized
    )


def _normed(product, residual, gamma, epsilon):
    y, _, total = _add_rms_norm(product.view(residual.shape), residual, gamma, epsilon)
    return total, y


def _add_rms_norm(product, residual, gamma, epsilon):
    return torch.ops.npu.npu_add_rms_norm(product, residual, gamma, epsilon)


@aclnn(f"aclnnMatmulAllReduceAddRmsNorm({_HEAD}, Tensor residual, {_TAIL}) -> (Tensor, Tensor)")
def matmul_all_reduce_add_rms_norm(
    x1, x2, bias, residual, gamma, epsilon, group, reduce_op, comm_turn, stream_mode
):  # fmt: skip
    return _normed(_product(x1, x2, bias, group, reduce_op, comm_turn), residual, gamma, epsilon)


@aclnn(
    f"aclnnQuantMatmulAllReduceAddRmsNorm({_HEAD}, Tensor dequant_scale, Tensor residual, {_TAIL})"
    " -> (Tensor, Tensor)"
)
def quant_matmul_all_reduce_add_rms_norm(
    x1, x2, bias, dequant_scale, residual, gamma, epsilon, group, reduce_op, comm_turn, stream_mode
):  # fmt: skip
    product = _product(x1, x2, bias, group, reduce_op, comm_turn, dequant_scale=dequant_scale)
    return _normed(product, residual, gamma, epsilon)


@aclnn(
    f"aclnnWeightQuantMatmulAllReduceAddRmsNorm({_HEAD}, Tensor antiquant_scale, Tensor? antiquant_offset,"
    f" Tensor residual, {_TAIL}, int antiquant_group_size) -> (Tensor, Tensor)"
)
def weight_quant_matmul_all_reduce_add_rms_norm(
    x1, x2, bias, antiquant_scale, antiquant_offset, residual, gamma, epsilon, group, reduce_op, comm_turn,
    stream_mode, antiquant_group_size,
):  # fmt: skip
    product = _product(
        x1,
        x2,
        bias,
        group,
        reduce_op,
        comm_turn,
        antiquant_scale=antiquant_scale,
        antiquant_offset=antiquant_offset,
        antiquant_group_size=antiquant_group_size,
    )
    return _normed(product, residual, gamma, epsilon)


def _in_place(plain, position):
    """The form that writes the sum to `residual`, the argument at `position`, and returns the norm alone."""

    def kernel(*arguments):
        total, normed = plain(*arguments)
        arguments[position].copy_(total)
        return normed

    return kernel


aclnn(f"aclnnInplaceMatmulAllReduceAddRmsNorm({_HEAD}, Tensor(a!) residual, {_TAIL}) -> Tensor")(
    _in_place(matmul_all_reduce_add_rms_norm, 3)
)
aclnn(
    f"aclnnInplaceQuantMatmulAllReduceAddRmsNorm({_HEAD}, Tensor dequant_scale, Tensor(a!) residual, {_TAIL})"
    " -> Tensor"
)(_in_place(quant_matmul_all_reduce_add_rms_norm, 4))
aclnn(
    f"aclnnInplaceWeightQuantMatmulAllReduceAddRmsNorm({_HEAD}, Tensor antiquant_scale, Tensor? antiquant_offset,"
    f" Tensor(a!) residual, {_TAIL}, int antiquant_group_size) -> Tensor"
)(_in_place(weight_quant_matmul_all_reduce_add_rms_norm, 5))
