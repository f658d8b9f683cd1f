"""Helpers that operators of several folders share; those of one folder live in it."""
