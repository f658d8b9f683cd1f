"""The one place the version stands in."""

__version__ = "0.1.0"
