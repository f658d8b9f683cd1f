"""Other chips for a test: documented constraints differ by product series."""

import contextlib

from softnpu import chips, settings


@contextlib.contextmanager
def on_family(family):
    """Runs a block as a chip of the family: A2, A3, A5, 310P or 910A."""
    soc = next(name for name in chips.names() if chips.get(name).family == family)
    with settings.override(soc=soc):
        yield
