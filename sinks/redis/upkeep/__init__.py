"""Changes to the layers of a key group in Redis apart from a batch: merge, fill and rebuild."""
