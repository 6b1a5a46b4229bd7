"""A version's number with its history: the form in which a number leaves the process (I12).

A number means nothing without its history: a namespace that was dropped and made again, restored from a
backup or put back from older copies has other versions with the same numbers. A digest covers all decisions
up to its version. So two references with one number and one digest are the same version. The offsets of
streams, the end lines of ``tidegate tail``, the files of mirrors and the numbers that a client keeps are
compared by ``VersionRef.check`` and nowhere else.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tidegate.base.decoders import json_decoder
from tidegate.base.text import brief
from tidegate.errors import ConfigError, TidegateError
from tidegate.wal.record import Count

NUMBER_MAX = 2**53


class VersionRef(msgspec.Struct, frozen=True):
    """A version of one history: its number, its namespace's uuid, its digest.

    '' is not known, and is not compared. Version 0, before the first one, has no digest.

    >>> ref = VersionRef.parse("41:7d5c:90ab")
    >>> ref.version, ref.uuid, ref.digest, str(ref)
    (41, '7d5c', '90ab', '41:7d5c:90ab')
    """

    version: Count
    uuid: str = ""
    digest: str = ""

    def __str__(self) -> str:
        return f"{self.version}:{self.uuid}:{self.digest}" if self.has_history else str(self.version)

    @classmethod
    def parse(cls, text: str) -> VersionRef:
        """Parse ``VERSION:UUID:DIGEST``; or ``VERSION:DIGEST``, or a bare number, which has no history.

        Raises: ConfigError.
        """
        number, *history = text.split(":")
        if len(history) > 2 or not (number.isascii() and number.isdecimal()) or int(number) > NUMBER_MAX:
            raise ConfigError(
                f"{brief(text)} is no version: it must be a number, or VERSION:UUID:DIGEST as it was printed"
            )
        return cls(int(number), *history) if len(history) != 1 else cls(int(number), digest=history[0])

    @classmethod
    def of(cls, fields: Any, where: str) -> VersionRef:
        """Decode the fields of a reference that was stored as an object. Raises: ConfigError."""
        try:
            return _decoder.decode(msgspec.json.encode(fields))
        except (msgspec.DecodeError, TypeError) as error:
            raise ConfigError(f"{where}: {brief(fields)} is no version of tidegate's: {error}") from error

    @property
    def has_history(self) -> bool:
        """Whether it can be compared."""
        return bool(self.uuid or self.digest)

    @property
    def next(self) -> VersionRef:
        """The version after it, in the same namespace."""
        return VersionRef(self.version + 1, self.uuid)

    def check(self, shown: VersionRef, where: str, error: type[TidegateError], step: str) -> None:
        """Compare it with the version that log or store show under its number now.

        ``step`` is the next step of the caller's user. Raises: ``error``: it is a version of another history.
        """
        if self.uuid and shown.uuid and self.uuid != shown.uuid:
            was, now = f"namespace {self.uuid}", f"namespace {shown.uuid}"
        elif self.version == shown.version and self.digest and shown.digest not in ("", self.digest):
            was, now = f"digest {self.digest}", f"digest {shown.digest}"
        else:
            return
        raise error(
            f"{where}: version {self.version} of {was} is of another history: {now} is here, since the"
            " namespace was made again or restored, older copies of log and store were put back, or its name"
            f" now means another one. Its versions are others, whatever their numbers: {step}"
        )


Version = int | VersionRef
"""A version that a client names; a bare number is compared with nothing."""


def number_of(version: Version) -> int:
    """Return the number of a version."""
    return version.version if isinstance(version, VersionRef) else version


_decoder = json_decoder(VersionRef)
