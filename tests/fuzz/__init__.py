"""The fuzzer: every operator with spoiled arguments, on guard pages, in worker processes. `python -m tests.fuzz --help`"""
