"""Execution of graphs on the host: from an ATen graph on npu to code that Inductor compiled, on the device's bytes."""
