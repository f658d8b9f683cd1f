"""Storage formats of NPU tensors: what they are, casts between them, tensors made in them."""
