"""The steps of the commit, one file each. None decides what comes next: `commit.py` and `states.TABLE` do."""
