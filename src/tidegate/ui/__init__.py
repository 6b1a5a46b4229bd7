"""A page that shows how a namespace stands: ``tidegate ui``. It reads, and writes nothing."""
