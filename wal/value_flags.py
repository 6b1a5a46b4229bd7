"""The first byte of a stored value, and of a value inside a batch: every flag, in one table.

Stored, as published in docs/storage-format.md::

    flag  name                  after the byte
    +     VALUE                 the value's bytes
    -     DELETE                nothing
    e     EXPIRING              8 bytes expiry, the value
    s     SEQUENCED             1 byte length, sequence, the value
    x     EXPIRING_SEQUENCED    8 bytes expiry, 1 byte length, sequence, the value
    d     DELETE_SEQUENCED      1 byte length, sequence

Transient flags never leave a batch: staging removes such rows, quarantines them, or refuses the
batch.
"""

from __future__ import annotations

VALUE = b"+"
DELETE = b"-"
EXPIRING = b"e"
SEQUENCED = b"s"
EXPIRING_SEQUENCED = b"x"
DELETE_SEQUENCED = b"d"

WITH_EXPIRY = (EXPIRING, EXPIRING_SEQUENCED)
WITH_SEQUENCE = (SEQUENCED, EXPIRING_SEQUENCED, DELETE_SEQUENCED)
DELETES = (DELETE, DELETE_SEQUENCED)
STORED = frozenset((VALUE, DELETE, EXPIRING, SEQUENCED, EXPIRING_SEQUENCED, DELETE_SEQUENCED))

HIDDEN = "~"
"""The field of a derived row that readers do not see: what its totals are made of."""

NOT_TEXT = b"~"
"""From Spark: the value's JSON lost bytes of a text that is not UTF-8."""
NO_TIME = b"@"
"""From Spark: the value has a date or a time that Python cannot represent."""
UNUSABLE = b"!"
"""From Spark: the row cannot be used. The reason, advice, each ended by a zero byte, and the stored value
follow.
"""
REFUSED = b"?"
"""From a task, instead of a value: the user's function raised, and its error follows."""
RUN = b"#"
"""From a task, instead of a value: a mark of the run that made its rows (`spark/state/output_rows.py`)."""
TRANSIENT = frozenset((NOT_TEXT, NO_TIME, UNUSABLE, REFUSED, RUN))

VALUE_END = 2**31 - 1
"""Beyond any value: binary_slice without an end fails on short values (pyarrow 26: "Negative buffer")."""
EXPIRY_END = 9
"""Where the value or the sequence begins in a stored value that has an expiry."""
