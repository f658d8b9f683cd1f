"""Upstream's loader of Ascend Transformer Boost."""
