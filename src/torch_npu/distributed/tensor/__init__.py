"""torch_npu.distributed.tensor: DTensor on npu is torch's own; `experimental` has context parallelism."""
