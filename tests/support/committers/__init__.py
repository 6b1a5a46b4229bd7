"""Drivers of several kinds for tests: pipelined, trimming, and with many stores."""
