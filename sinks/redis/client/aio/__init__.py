"""Commands to many Redis servers in an event loop: calls, the servers and how they are found, connections."""
