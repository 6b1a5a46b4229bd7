"""Commands for a query whose checkpoint is lost: adopt another one, or make it again from the log."""
