"""Which task takes which key groups, and where tasks prefer to run."""
