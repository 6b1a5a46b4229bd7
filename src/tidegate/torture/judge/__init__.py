"""The checker: from histories to a verdict. It reads files only."""
