"""Commands that read rows and versions."""
