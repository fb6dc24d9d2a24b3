"""The benchmarks of `tools/bench.py`, one module per type of workload."""
