"""The calls of a transaction: what each accepts, and the columns that it makes. Nothing runs yet."""
