"""Servers, proxies and workloads that tests on real servers share."""
