"""The store on Redis: one server, Sentinel or Cluster.

What the keys mean is here; sending commands is in `client`.
"""
