"""The apply of a version: its works, the processes that apply without Spark, and their worker."""
