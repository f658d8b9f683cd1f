"""Golden data: recording, replay, msprobe, diff."""
