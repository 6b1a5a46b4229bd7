"""A driver's background work: retirement, trimming, fills, followers of other stores, pins of versions."""
