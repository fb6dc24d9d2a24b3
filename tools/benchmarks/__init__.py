"""What `tools/bench.py` measures, one module a kind of workload."""
