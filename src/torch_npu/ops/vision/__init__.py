"""Boxes and detection: overlaps, suppression, coders, assignment, pooling of regions."""
