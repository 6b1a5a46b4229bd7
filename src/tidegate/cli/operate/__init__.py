"""Commands that change a namespace. What they do is in `tidegate.committers.operations`."""
