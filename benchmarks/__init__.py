"""Speed, side by side with its baseline: one file an area, each with `cases()`. Run by `make bench`."""
