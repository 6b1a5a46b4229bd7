"""A namespace moved to another number of key groups: copy, follow the log, compare, and the last version.

The copy is a new namespace. Its first version holds the rows of one version of its source; each later one has
the changes of the next version of the source, with the same origin. Neither has a version that the other has
twice, and batches, loads and imports of the source are known to the copy as its own (I2).
"""
