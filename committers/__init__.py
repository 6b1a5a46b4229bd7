"""The commit: its states, its order, opening, recovery and retirement."""
