"""Expired certificates: detection from a failed TLS connection's error, and the remedy."""

from __future__ import annotations

import _ssl
import contextlib
import datetime
import ssl
from typing import Any

LOST = ("ssl", "eof", "closed", "reset", "disconnect", "aborted", "broken pipe")
"""Words in the error of a lost connection: with TLS 1.3 a refused client certificate has no other sign."""


def over_its_time(said: str, own: str | None) -> str:
    """Return the remedy for an expired certificate or one of another name; '' when the cause is neither.

    ``said`` is the failed connection's error, ``own`` the file of the client's certificate.

    >>> over_its_time("certificate verify failed: certificate has expired", None)
    "the server's certificate, or its authority's, has expired: renew it there"
    """
    words = said.lower()
    if "certificate is not valid for" in words or "hostname mismatch" in words:
        return "the server's certificate is for other names: connect by one of them, or add this one to it"
    if "certificate has expired" in words:
        return "the server's certificate, or its authority's, has expired: renew it there"
    end = end_of(own) if own else None
    ended = end is not None and end < datetime.datetime.now(datetime.timezone.utc)
    if "certificate expired" in words.replace("_", " ") or (ended and any(lost in words for lost in LOST)):
        since = f" on {end:%Y-%m-%d %H:%M} UTC" if ended else ""
        return f"this client's certificate {own or ''} has expired{since}: renew it"
    return ""


def end_of(file: str) -> datetime.datetime | None:
    """Return the end of a certificate's (PEM) validity; None when it cannot be read."""
    read: Any = vars(_ssl).get("_test_decode_cert")  # Python's own, without a public name
    if read is None:
        return None
    with contextlib.suppress(OSError, ssl.SSLError, KeyError, ValueError):
        seconds = ssl.cert_time_to_seconds(str(read(file)["notAfter"]))
        return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
    return None
