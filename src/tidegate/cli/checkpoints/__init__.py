"""Commands that move a namespace: to another checkpoint, log, number of key groups or storage format."""
