"""The model of commands: words of an operator's commands, each followed by the next, against a dictionary."""
