"""The C++ kernels of operators against the Python kernels that they stand for."""
