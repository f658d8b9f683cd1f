"""Scatter, gather and prefetch: caches updated by index, rows taken by index."""
