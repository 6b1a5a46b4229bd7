"""Random calls through both ways of staging, compared byte for byte, and with a model in plain Python."""
