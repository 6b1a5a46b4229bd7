"""Applying a version: the parts of it, the processes that apply without Spark, and their worker."""
