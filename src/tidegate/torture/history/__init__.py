"""Histories: the events of a cell, and the files that hold them."""
