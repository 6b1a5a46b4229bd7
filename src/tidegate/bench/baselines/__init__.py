"""Other ways to write the same rows, one file a store, to compare with."""
