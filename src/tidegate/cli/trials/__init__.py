"""Commands that start their own runs: the demo, the benchmark, the torture suite."""
