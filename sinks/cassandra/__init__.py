"""The store on Cassandra. What the rows mean is here; sessions and statements are in `client`."""
