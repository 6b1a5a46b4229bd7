"""The work in Redis apart from a batch: merge, fill, rebuild and sweep of layers; checks of servers."""
