"""The steps of the commit, one file each. Their order is in `commit.py` and `states.TABLE`."""
