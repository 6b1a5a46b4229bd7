"""The coordinator: states, the commit, open, recover, retire."""
