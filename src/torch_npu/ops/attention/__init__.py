"""Attention: fused training attention, inference attention over caches, multi-head layers."""
