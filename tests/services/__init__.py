"""Tests on real servers, each kind in a folder of its own."""
