"""Rotary position embedding operators, alone and fused with normalization and cache writes."""
