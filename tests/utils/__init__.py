"""Tests of torch_npu.utils."""
