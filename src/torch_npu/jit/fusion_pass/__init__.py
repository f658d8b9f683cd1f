"""Passes over TorchScript graphs, one a module."""
