"""Quantization: to low precision and back, packing of scales and weights, quantized caches."""
