"""Kernels that the libraries of several programs have in common; each program's package gives them its names."""
