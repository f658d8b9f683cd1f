"""The operators of Ascend Transformer Boost (ATB): `torch.ops.atb`, `torch_npu.atb` and `torch_npu._npu_*`."""
