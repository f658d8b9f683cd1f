"""TorchAir: graph mode for the npu device. An empty floor for now."""
