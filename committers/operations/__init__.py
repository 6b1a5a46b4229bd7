"""The operator's commands, one file each. None runs during a batch."""
