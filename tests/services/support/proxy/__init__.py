"""The TCP proxy: what is common to all protocols."""
