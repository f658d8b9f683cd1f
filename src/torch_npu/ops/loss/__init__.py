"""Cross-entropy losses."""
