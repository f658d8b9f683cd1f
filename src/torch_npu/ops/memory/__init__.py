"""Memory of NPU tensors: raw copies, host memory behind a tensor of the device, streams of a block."""
