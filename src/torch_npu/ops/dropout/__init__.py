"""Dropout with bit and byte masks."""
