"""The page of ``tidegate ui``, which shows the state of a namespace. It reads, and writes nothing."""
