"""`python -m softnpu`: the command, where no script of it is on the PATH."""

from softnpu.cli import main

main(prog_name="softnpu")
