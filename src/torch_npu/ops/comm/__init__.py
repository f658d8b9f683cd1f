"""Operators that fuse communication with products or with the routing of experts."""
