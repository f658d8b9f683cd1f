"""Activation operators: GELU and its fast form, SiLU, Mish, SwiGLU."""
