"""The demo: real departures, streamed into versioned tables."""
