"""The vectors: names, keys, values, schemas and refusals with their outcomes, as this release computes them.

``tools/vectors.py`` writes them to ``conformance/vectors``. ``conformance/README.md`` describes their fields.
"""

REFUSE, READ_POINTER = "refuse", "read the pointer again"
SEND_AGAIN, OTHER_SERVER = "send it again", "send it again with the server's id"
NO_LEASE = "go on without a lease"
"""The next steps of a reader after an error reply: ``does`` of ``refusals.json``."""
