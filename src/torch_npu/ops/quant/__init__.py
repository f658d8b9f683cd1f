"""Quantisation: to low precision and back, packing of scales and weights, quantised caches."""
