"""What an operator asks for, one file a command. None runs during a batch."""
