"""Logins that must not be shown, and URLs of every kind and form with them in it."""

from __future__ import annotations

import random
import re
import string
import traceback
from collections.abc import Iterator
from urllib.parse import quote, unquote

DELIMITERS = [
    "/",
    "@",
    ":",
    "?",
    "#",
    "%",
    "[",
    "]",
    " ",
    "'",
    '"',
    ",",
    "=",
    "&",
    "%41",
    "\\",
    "é",
    "ключ",
    "密",
]
PIECE = 7
URLS = (
    "redis://{login}127.0.0.1:1/0",
    "rediss://{login}127.0.0.1:1",
    "redis+cluster://{login}127.0.0.1:1,127.0.0.1:2",
    "rediss+cluster://{login}127.0.0.1:1",
    "redis+sentinel://{login}127.0.0.1:1/main/0",
    "rediss+sentinel://{login}127.0.0.1:1/main",
    "cassandra://{login}127.0.0.1:1/keyspace",
    "kafka://{login}127.0.0.1:1",
    "memory://{login}name",
    "file://{login}host/folder",
    "sqlite://{login}host/folder",
    "postgresql://{login}127.0.0.1:1/database",
    "http://{login}127.0.0.1:1/metrics",
)


def pieces(rng: random.Random) -> str:
    """A random text with delimiters in it; its pieces are found nowhere by chance."""
    letters = string.ascii_letters
    words = [rng.choice(letters) + "".join(rng.choices(letters + string.digits, k=PIECE)) for _ in range(4)]
    marks = rng.choices(DELIMITERS, k=3)
    return words[0] + "".join(mark + word for mark, word in zip(marks, words[1:], strict=True))


def shapes(rng: random.Random, user: str, password: str) -> Iterator[str]:
    """URLs with this login, raw and percent-encoded: well formed, and with each of the usual mistakes."""
    for url in URLS:
        scheme, _, after = url.partition("://")
        place = after.replace("{login}", "")
        for one, other in ((user, password), (quote(user, safe=""), quote(password, safe=""))):
            login = f"{one}:{other}"
            yield url.format(login=f"{login}@")
            yield url.format(login=f":{other}@")
            yield url.format(login=f"{other}@")
            yield f"{scheme}://{login}@host:port/0"
            yield f"{scheme}://{login}@host:99999"
            yield f"{scheme}://{login}@[host"
            yield f"{scheme}://{login}@"
            yield f"{scheme}://{login}@host/0/1/2/3"
            yield f"{scheme}://{login}@host?{other}"
            yield f"{scheme}://{place}?password={other}"
            yield f"{scheme}:///folder?password={other}"
            yield f"{scheme}:///folder#{other}"
            yield f"{scheme}://{place}#{other}"
            yield rng.choice([f"{scheme}:{login}@host", f"{scheme}:/{login}@host", f"{scheme}//{login}@host"])
            yield rng.choice([f"{login}@host", f"://{login}@host", f"copy={scheme}:{login}@host", other])
            if "@" not in login:  # else what follows it is a host, as far as anybody can tell
                yield f"{scheme}://{login}"
                yield f"{scheme}://{login}/0"


def secret_in(text: str, *secrets: str) -> list[str]:
    """What the text has of the secrets: all of one, or a piece of it, also as JSON or ``repr`` writes it."""
    found = []
    for secret in secrets:
        words = re.findall(rf"[A-Za-z0-9]{{{PIECE},}}", unquote(secret))
        found += [word for word in (secret, quote(secret, safe=""), *words) if word in text]
    return found


def told_of(error: BaseException) -> str:
    """All that an exception can show: texts, arguments, and those of all in its chain."""
    seen: list[BaseException] = []
    todo: list[BaseException | None] = [error]
    while todo:
        one = todo.pop()
        if one is not None and one not in seen:
            seen.append(one)
            todo += [one.__cause__, one.__context__]
    texts = [f"{one} {one!r} {one.args!r} {getattr(one, '__notes__', '')}" for one in seen]
    return "\n".join([*texts, *traceback.format_exception(error)])
