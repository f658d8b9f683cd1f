"""Native sparse attention: compressed keys, the choice of blocks, attention over chosen blocks."""
