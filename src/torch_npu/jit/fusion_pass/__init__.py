"""Rewrites of TorchScript graphs, one to a file."""
