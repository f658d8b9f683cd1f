"""Modules whose import once patched torch.distributed."""
