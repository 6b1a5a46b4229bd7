"""Commands that start runs of their own: the demo, the benchmark, the torture suite."""
