"""Upstream's package of operator plugins, as far as programs import it."""
