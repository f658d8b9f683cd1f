"""torchair.core: what the rest of the package shares."""
