"""Speed, side by side with CPU eager, Inductor and the machine's limits: one file an area, each with `cases()`.

`make bench` runs them; see docs/performance.md.
"""
