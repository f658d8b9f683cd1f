"""`python -m softnpu.cli`."""

from softnpu.cli import main

main(prog_name="softnpu")
