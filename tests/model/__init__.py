"""Models that are explored exhaustively in small scopes."""
