"""Tests of the device core, one file an area."""
