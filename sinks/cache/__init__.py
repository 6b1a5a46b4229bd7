"""A host's cache of state: pieces of sorted runs that follow the store. Never the only copy of anything."""
