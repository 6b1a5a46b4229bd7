"""The calls of a transaction: their arguments and the columns that they build. Nothing runs yet."""
