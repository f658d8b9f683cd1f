"""matmul_transpose(tensor1, tensor2): the product with the second factor transposed."""

from torch_npu.contrib.function._matmul_transpose import MatmulApply

__all__ = ["matmul_transpose"]

matmul_transpose = MatmulApply.apply
