"""Work that tests of several kinds of server run."""
