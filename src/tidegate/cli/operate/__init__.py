"""Commands that change a namespace. `tidegate.committers.operations` does the work."""
