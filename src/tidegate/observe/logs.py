"""Log records as JSON, one object per line, with the fields that the library's records carry.

>>> import logging, sys
>>> handler = logging.StreamHandler(sys.stdout)
>>> handler.setFormatter(JsonFormatter())
>>> logger = logging.getLogger("tidegate.example")
>>> logger.addHandler(handler)
>>> logger.warning("hello", extra={"namespace": "flights", "version": 3})  # doctest: +ELLIPSIS
{"time": "...", "level": "WARNING", ..., "message": "hello", "namespace": "flights", "version": 3}
"""

from __future__ import annotations

import datetime
import json
import logging

from tidegate.observe.events import FIELDS

MORE = ("phases", "rows", "bytes")
"""Extra fields of the record of a version that became visible."""


class JsonFormatter(logging.Formatter):
    """A formatter that writes one JSON object per record.

    It has time (UTC), level, logger, message, and namespace, version, batch and phase where the
    record has them. An exception's text is in ``exception``.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Format the record as one line."""
        created = datetime.datetime.fromtimestamp(record.created, datetime.timezone.utc)
        shown = {
            "time": created.isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields = {name: getattr(record, name, None) for name in (*FIELDS, *MORE)}
        shown |= {name: value for name, value in fields.items() if value is not None}
        if record.exc_info:
            shown["exception"] = self.formatException(record.exc_info)
        return json.dumps(shown, default=str)
