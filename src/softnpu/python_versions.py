"""What differs between the versions of Python that softnpu runs on (3.10 to 3.13): nothing else compares them."""

from __future__ import annotations

import sys

__all__ = ["OLDEST", "tomllib"]

OLDEST = (3, 10)

if sys.version_info >= (3, 11):
    import tomllib
else:  # the same reader, from PyPI
    import tomli as tomllib
