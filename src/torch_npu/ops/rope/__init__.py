"""Rotary position embedding operators, alone and fused with normalisation and cache writes."""
