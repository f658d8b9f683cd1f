"""torch_npu.distributed.nn: collectives with gradients are torch.distributed.nn's, which work on hccl groups."""
