"""The commands: softnpu and npu-smi."""
