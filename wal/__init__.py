"""The write-ahead log: records, the fold, and the logs that keep them."""
