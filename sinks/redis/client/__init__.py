"""Commands to many Redis servers, with threads or in an event loop. Knows Redis, not versions."""
