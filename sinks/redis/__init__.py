"""The store on Redis: one server, Sentinel or Cluster.

This package defines the meaning of the keys; `client` sends commands.
"""
