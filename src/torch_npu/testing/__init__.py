"""torch_npu.testing: what tests of other NPU projects import. Mirrors upstream's package of that name."""
