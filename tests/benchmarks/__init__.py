"""The harness of the benchmarks, the comparison of two runs, and the page. No test depends on time."""
