"""Upstream's package of helpers, as far as programs reach into it."""
