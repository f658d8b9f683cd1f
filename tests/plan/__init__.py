"""Tests of torch_npu.profiler."""
