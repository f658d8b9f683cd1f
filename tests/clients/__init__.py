"""Real programs from PyPI, unmodified, on the device. They have a virtual environment of their own: `make clients`."""
