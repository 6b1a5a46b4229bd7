"""Power cuts: system calls played on a model of a disk that loses what was not synced."""
