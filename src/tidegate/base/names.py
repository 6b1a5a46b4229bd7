"""Names of namespaces and tables, and their one injective escape into names of objects.

Kafka refuses ``a.b`` beside ``a_b``; CQL names take 48 characters without ``.`` and ``-``; SQLite
and some file systems fold case. So every name that becomes a topic, a table, a keyspace or a folder
is escaped by ``escape``: lower-case letters and digits are unchanged, an underscore starts a pair:

    ``__`` underscore    ``_0`` dot    ``_1`` hyphen    ``_x`` (a letter) the capital X

A result longer than 40 characters is cut to at most 14 and followed by ``_9`` and 24 hex digits of
its BLAKE2b digest; no other escaped name contains ``_9``.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import re
import unicodedata
from collections.abc import Iterable

from tidegate.base.text import brief
from tidegate.base.urls import redact
from tidegate.errors import ConfigError

LOCAL = "_local"
"""The table of the instances of every local state; ``_local.<name>`` holds the items of one."""
DELETED = "_deleted"
"""``_deleted.<table>`` keeps, for a while, the sequences of rows that ``apply_changes`` has deleted."""
DUE = "_due"
"""``_due.<table>`` has the due time of each key of a state with a timeout."""
QUEUE = "_due_at"
"""``_due_at.<table>`` has the same keys by key group and due time."""
UNLISTED = (f"{DUE}.", f"{QUEUE}.")
"""The starts of the names of tables that readers' lists leave out: their rows say nothing to readers."""
NAME_MAX = 64
NAME = re.compile(rf"[A-Za-z0-9_.-]{{1,{NAME_MAX}}}")
TOKEN_MAX = 200
FOLDER_MAX = 4_096
REKEY_TOKEN, RELOG_TOKEN = "rekey:", "relog:"
RENAME_TOKEN, RELEASE_TOKEN = "rename column ", "quarantine drop "
MIGRATION_TOKEN, DERIVE_TOKEN = "migrate state ", "derive "
OWN_TOKENS = (REKEY_TOKEN, RELOG_TOKEN, RENAME_TOKEN, RELEASE_TOKEN, MIGRATION_TOKEN, DERIVE_TOKEN)
"""The starts of the tokens that tidegate's own commands and calls give their versions."""
ESCAPED_MAX = 40
CUT = 14


def check_name(kind: str, name: object) -> str:
    """Return the name itself. Raises: ConfigError: it is not ``[A-Za-z0-9_.-]{1,64}``, or starts with ``-``.

    Such a name would be an option in the commands that messages print.
    """
    if not isinstance(name, str) or NAME.fullmatch(name) is None or name.startswith("-"):
        shown = brief(name)
        if isinstance(name, str) and re.search("://|@", name):  # a URL in the wrong place
            shown = redact(name)[:TOKEN_MAX]
        characters = "use 1 to 64 of the characters A-Z a-z 0-9 _ . -, not - at the beginning"
        msg = f"{kind} name {shown} is not allowed: {characters}"
        raise ConfigError(msg)
    return name


def check_own_name(kind: str, name: str, own: str) -> str:
    """Return the name of tidegate's own table for this name. Raises: ConfigError: it is too long."""
    if len(own) > NAME_MAX:
        longest = NAME_MAX - len(own) + len(name)
        msg = (
            f"{kind} name {brief(name)} is not allowed: use 1 to {longest} characters, since this"
            " call also makes"
            f" the table {own}, and {NAME_MAX} are the most"
        )
        raise ConfigError(msg)
    return own


def check_folder(name: str, folder: object) -> str:
    """Return the path or URL of a folder that goes to Spark, as text.

    A JVM takes no half of a surrogate: py4j loses its connection over one. Raises: ConfigError.
    """
    path: object = os.fspath(folder) if isinstance(folder, os.PathLike) else folder
    if (
        not isinstance(path, str)
        or not 0 < len(path) <= FOLDER_MAX
        or any(unicodedata.category(character) in {"Cc", "Cs"} for character in path)
    ):
        raise ConfigError(
            f"{name} is {brief(folder)}; it must be the path or URL of a folder, as text of at most"
            f" {FOLDER_MAX} characters without control characters, such as s3a://bucket/folder"
        )
    return path


def listed(tables: Iterable[str]) -> list[str]:
    """Return the names of tables that readers' lists show, in order.

    >>> listed(["visits", "_due.visits", "_due_at.visits", "_quarantine"])
    ['_quarantine', 'visits']
    """
    return sorted(name for name in tables if not name.startswith(UNLISTED))


def check_token(token: object) -> str:
    """Return the token of a load or an import, as a plain text. Raises: ConfigError when it cannot be one.

    It stays in the log's state for the namespace's whole life, so it is short.
    """
    if not isinstance(token, str) or not 0 < len(token) <= TOKEN_MAX or not token.isprintable():
        msg = (
            f"token={brief(token)}: give the load a name of its own, such as '2026-11-21': a text of 1 to"
            f" {TOKEN_MAX} printable characters; it is loaded once per token"
        )
        raise ConfigError(msg)
    if token.startswith(OWN_TOKENS):
        raise ConfigError(
            f"token={brief(token)} begins like a token of tidegate's own commands, which later"
            " commands look for:"
            " give another one, such as '2026-11-21'"
        )
    return "".join(token)  # also of a subclass, such as an enum's


def own_token(start: str, namespace: str, version: int, what: str) -> str:
    """Return the token of a version of tidegate's own, made after this version of a namespace.

    ``namespace`` is its uuid: a copy counts its versions from 1 again, and has the tokens of its source.
    """
    return f"{start}{version} {namespace[:8]} {what}"


def following_name(namespace: str) -> str:
    """Return the name of a namespace that takes the place of another one.

    >>> following_name("flights"), following_name("flights_2")
    ('flights_2', 'flights_3')
    """
    numbered = re.fullmatch(r"(.*)_(\d{1,9})", namespace)
    stem, number = (numbered[1], int(numbered[2]) + 1) if numbered else (namespace, 2)
    return f"{stem[: NAME_MAX - len(str(number)) - 1]}_{number}"


def relog_command(namespace: str) -> str:
    """Return the command that saves a namespace whose log is gone."""
    return f"tidegate relog --namespace {namespace} --to {following_name(namespace)}"


def saved_by_relog(namespace: str, visible: int | None = None) -> str:
    """Describe the way out for a log that is gone, or of no use; the command is the first advice.

    ``visible`` is the store's visible version; None: it is not known here.
    """
    if visible == 0:
        return (
            f"no version is visible, so there is nothing to save: `tidegate drop --namespace {namespace}`,"
            " then start the query on a new checkpoint; or restore the log, if there is a copy of all of it"
        )
    version = "the visible version" if visible is None else f"version {visible}"
    return (
        f"`{relog_command(namespace)}` saves {version} in a new namespace with a new log, where the same"
        " checkpoint continues; or restore the log, if there is a copy of all of it"
    )


FILL_AGAIN = (
    "`tidegate store remove NAME`, `tidegate drop --only-stores --store NAME=URL`, `tidegate store"
    " add NAME=URL`"
)
"""The commands that fill a store from scratch, in their order."""


def did_you_mean(name: object, names: Iterable[str]) -> str:
    """Return the end of a message about a missing name: the nearest existing one, if any is near."""
    close = difflib.get_close_matches(name, list(names), n=1) if isinstance(name, str) else []
    return f"; did you mean {close[0]!r}?" if close else ""


def escape(name: str) -> str:
    """Return the object name for a namespace or table name: ``[a-z0-9_]{1,40}``, injective.

    >>> escape("flights"), escape("Daily.Top-10"), escape("a_b")
    ('flights', '_daily_0_top_110', 'a__b')
    """
    punctuation = {"_": "__", ".": "_0", "-": "_1"}
    pieces = [punctuation.get(c) or ("_" + c.lower() if c.isupper() else c) for c in name]
    if sum(map(len, pieces)) <= ESCAPED_MAX:
        return "".join(pieces)
    head = ""
    for piece in pieces:  # cut between pairs, so that the mark below cannot be read as half of one
        if len(head) + len(piece) > CUT:
            break
        head += piece
    return head + "_9" + hashlib.blake2b(name.encode(), digest_size=12).hexdigest()
