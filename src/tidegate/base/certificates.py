"""Certificates that are over their time: what a failed TLS connection says of it, and what to do."""

from __future__ import annotations

import _ssl
import contextlib
import datetime
import ssl
from typing import Any

LOST = ("ssl", "eof", "closed", "reset", "disconnect", "aborted", "broken pipe")
"""In the words of a connection that ended: with TLS 1.3 who refuses a client's certificate does no more."""


def over_its_time(said: str, own: str | None) -> str:
    """What to do when a certificate's time is over or its name is another one, by what the failed connection
    ``said`` and by the file of the client's ``own`` certificate; '' when it is neither.

    >>> over_its_time("certificate verify failed: certificate has expired", None)
    "the server's certificate, or who signed it, is over its time: renew it there"
    """
    words = said.lower()
    if "certificate is not valid for" in words or "hostname mismatch" in words:
        return "the server's certificate is of other names: connect by one of them, or give it this one"
    if "certificate has expired" in words:
        return "the server's certificate, or who signed it, is over its time: renew it there"
    end = end_of(own) if own else None
    ended = end is not None and end < datetime.datetime.now(datetime.timezone.utc)
    if "certificate expired" in words.replace("_", " ") or (ended and any(lost in words for lost in LOST)):
        since = f" since {end:%Y-%m-%d %H:%M} UTC" if ended else ""
        return f"this client's certificate {own or ''} is over its time{since}: renew it"
    return ""


def end_of(file: str) -> datetime.datetime | None:
    """Until when a certificate (PEM) counts; None when that cannot be read."""
    read: Any = vars(_ssl).get("_test_decode_cert")  # Python's own, under no public name
    if read is None:
        return None
    with contextlib.suppress(OSError, ssl.SSLError, KeyError, ValueError):
        seconds = ssl.cert_time_to_seconds(str(read(file)["notAfter"]))
        return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
    return None
