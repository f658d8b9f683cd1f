"""Tests of the device: what issue 2 says must hold, one file an area."""
