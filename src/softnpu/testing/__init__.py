"""The parts of the pytest plugin `softnpu.pytest_plugin`; none of them imports torch before a test needs it."""
