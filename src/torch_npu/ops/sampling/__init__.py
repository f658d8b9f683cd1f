"""Filters and samplers for next-token logits."""
