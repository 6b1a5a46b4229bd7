"""Scaffolds that tests of several folders use: fake clocks, and namespaces to work on."""
