"""The placement of tasks: their assignment to executors, and preferred locations."""
