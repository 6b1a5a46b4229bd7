"""Versions as DataFrames and streams: the data source `tidegate`."""
