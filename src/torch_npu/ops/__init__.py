"""The operators of torch_npu, one file each, in rooms."""
