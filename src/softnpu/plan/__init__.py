"""Plans: the memory and the time of a job that does not fit on this machine.

`tasks` holds what a run without data leaves for the clock, `clock` predicts how long a chip would take for it.
"""
