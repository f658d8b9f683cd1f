"""ATen's operators under CANN's names, where name or order differ."""

from __future__ import annotations

import torch

from torch_npu.aclnn import aclnn


@aclnn("aclnnCast(Tensor self, int dtype) -> Tensor")
def cast(self, dtype):
    return self.to(dtype)


@aclnn("aclnnPermute(Tensor self, int[] dims) -> Tensor")
def permute(self, dims):
    return self.permute(dims)


@aclnn("aclnnInplaceCopy(Tensor(a!) self, Tensor src) -> ()")
def inplace_copy(self, src):
    self.copy_(src)


@aclnn("aclnnInplaceZero(Tensor(a!) self) -> ()")
def inplace_zero(self):
    self.zero_()


@aclnn("aclnnInplaceOne(Tensor(a!) self) -> ()")
def inplace_one(self):
    self.fill_(1)


@aclnn("aclnnReduceSum(Tensor self, int[] dims, bool keepdims, ScalarType dtype) -> Tensor")
def reduce_sum(self, dims, keepdims, dtype):
    return torch.sum(self, dims, keepdims, dtype=dtype)


@aclnn("aclnnCat(Tensor[] tensors, int dim) -> Tensor")
def cat(tensors, dim):
    return torch.cat(tensors, dim)
