"""URLs of logs and stores: their parts, and the one way to show them to people.

- ``scheme://[user[:password]@]host[:port][,host[:port]...][/path]``: of servers
- ``scheme:///path``: of files

The login ends at the last ``@``. ``/``, ``?`` and ``#`` in it must be percent-encoded: with one of
them the end of the login is ambiguous, and the URL is refused. ``urllib`` is not used to split a
URL, since its exceptions quote the part that they refuse.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import re
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, unquote_to_bytes

from tidegate.errors import ConfigError

HIDDEN = "***"
SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,30}")
HOST = re.compile(r"(\[[0-9A-Fa-f:.]+(?:%[\w.-]+)?\]|[\w.-]*)(?::(\d{1,5}))?")
SURROGATE = re.compile(r"[\ud800-\udfff]")
PLAIN = re.compile(r"[\w./ -]*")
PORT_MAX = 65_535
CUT_MIN = 4
"""The fewest characters at the end of a text that are taken for the beginning of a secret."""

ON_DISK = ("file", "sqlite")
NAMED = "memory"
SERVERS = {
    **dict.fromkeys(("redis", "rediss", "redis+cluster", "rediss+cluster"), re.compile(r"(/+\d*)?/*")),
    **dict.fromkeys(("redis+sentinel", "rediss+sentinel"), re.compile(r"(/+[\w.-]+(/+\d+)?)?/*")),
    "cassandra": re.compile(r"(/+[A-Za-z][A-Za-z0-9_]{0,47})?/*"),
    **dict.fromkeys(("kafka", "http", "https"), re.compile(r"/*|/metrics/*")),
}
"""By scheme: the paths that show no more than a database's number, a primary's or keyspace's name."""


PORTS = {"redis": 6379, "rediss": 6379, "cassandra": 9042, "kafka": 9092}
"""The default port by the first part of a scheme; those of Sentinels have another one."""
SENTINEL_PORT = 26379


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Url(NamedTuple):
    """The parts of a URL of servers, not decoded; ``rest`` is the query and the fragment."""

    scheme: str
    login: str | None
    hosts: tuple[str, ...]
    path: str
    rest: str


def redact(url: str) -> str:
    """Return the URL as it may be shown, logged and raised: without its login.

    Only the scheme is left of one that does not fit the grammar of its scheme.

    >>> redact("redis://user:secret@cache:6379/0"), redact("redis+sentinel://u:s3cret/x@h:26379/main")
    ('redis://***@cache:6379/0', 'redis+sentinel://***')
    >>> redact("sqlite:///data/store"), redact("redis:user:secret@cache")
    ('sqlite:///data/store', 'redis:***')
    """
    scheme = scheme_of(url)
    after = url[len(scheme) + 1 :]
    if not scheme or not after.startswith("//"):
        return f"{scheme}:{HIDDEN}" if scheme else HIDDEN * bool(url)
    return f"{scheme}://{_shown(scheme, url, after[2:]) or HIDDEN}"


def _shown(scheme: str, url: str, after: str) -> str:
    """Return what may be shown of the part after ``://``; empty: nothing."""
    if scheme in ON_DISK:
        return "" if path_of(url) is None else after
    if scheme == NAMED:
        return after if PLAIN.fullmatch(after) else ""
    parts, path = parts_of(url), SERVERS.get(scheme)
    if parts is None or path is None or parts.rest or not path.fullmatch(parts.path):
        return ""
    if not all(map(_is_address, parts.hosts)):
        return ""
    return f"{HIDDEN}@" * (parts.login is not None) + ",".join(parts.hosts) + parts.path


def without_login(url: str) -> str:
    """Return the URL as it may be stored: all of it but its login.

    Raises: ConfigError: the remainder may not be shown, so it may contain a secret.

    >>> without_login("redis://user:secret@cache:6379/0")
    'redis://cache:6379/0'
    """
    scheme, parts = scheme_of(url), parts_of(url)
    place = url if scheme not in SERVERS or parts is None else _joined(parts._replace(login=None))
    if redact(place) != place or not place:
        raise ConfigError(
            f"store {redact(url)}: this URL cannot be stored: only its login may be left out; give"
            " scheme://host:port/path, and everything else as options"
        )
    return place


def place_of(url: str) -> str:
    """Return the URL without its login, or the whole URL if the end of its login is ambiguous."""
    try:
        return without_login(url)
    except ConfigError:
        return url


def with_login_of(url: str, place: str) -> str:
    """Return ``place``, a URL without login, with the login of ``url``."""
    login, parts = parts_of(url), parts_of(place)
    if scheme_of(url) not in SERVERS or login is None or parts is None:
        return place
    return _joined(parts._replace(login=login.login))


def _joined(parts: Url) -> str:
    login = "" if parts.login is None else f"{parts.login}@"
    return f"{parts.scheme}://{login}{','.join(parts.hosts)}{parts.path}{parts.rest}"


def scheme_of(url: str) -> str:
    """Return the scheme before ``://``, or a known one before ``:``; empty: there is none."""
    scheme, colon, after = url.partition(":")
    known = bool(colon) and scheme in (*SERVERS, *ON_DISK, NAMED)
    return scheme if known or (after.startswith("//") and SCHEME.fullmatch(scheme)) else ""


def parts_of(url: str) -> Url | None:
    """Split a URL of servers; None: the end of its login is ambiguous."""
    scheme, _, after = url.partition("://")
    login, at_sign, after = after.rpartition("@")
    if re.search(r"[/?#]", login):
        return None
    place = re.split(r"[?#]", after, maxsplit=1)[0]
    hosts, slash, path = place.partition("/")
    return Url(scheme, login if at_sign else None, tuple(hosts.split(",")), slash + path, after[len(place) :])


def servers_at(url: str) -> Url:
    """Split the URL of a store on servers. Raises: ConfigError: it cannot be parsed."""
    parts, shown = parts_of(url), f"store {redact(url)}"
    if "://" not in url:
        raise ConfigError(f"{shown}: write {url.partition(':')[0]}:// and then its servers")
    if parts is None:
        raise ConfigError(
            f"{shown}: write / ? and # in its user and password as %2F %3F and %23, or give both as options"
            " (store_options, --store-config)"
        )
    if not _is_text(parts.login or ""):
        raise ConfigError(f"{shown}: its user or password is not text in UTF-8")
    return parts


def _is_text(login: str) -> bool:
    """Return whether an encoded login is text in UTF-8 without NUL: no server takes another one."""
    if SURROGATE.search(login):
        return False
    content = unquote_to_bytes(login)
    return content.decode(errors="ignore").encode() == content and b"\0" not in content


def addresses(parts: Url, port: int, shown: str) -> tuple[Address, ...]:
    """Return the servers of a URL; ``port`` is the default port. Raises: ConfigError: one is no address."""
    for number, host in enumerate(parts.hosts, 1):
        if not _is_address(host):
            of = f" ({number} of {len(parts.hosts)})" * (len(parts.hosts) > 1)
            raise ConfigError(
                f"{shown}: the text after {'the login' if parts.login else '://'} is not host:port{of}: write"
                f" {parts.scheme}://user:password@host:port, host:port alone without a login"
            )
    matches = [HOST.fullmatch(host) for host in parts.hosts]
    return tuple(
        Address(each[1].strip("[]").lower() or "localhost", int(each[2] or 0) or port)
        for each in matches
        if each
    )


def servers_of(url: str) -> frozenset[Address]:
    """Return the servers that get the login of a store's URL; none of one without servers."""
    scheme, parts = scheme_of(url), parts_of(url)
    port = SENTINEL_PORT if scheme.endswith("+sentinel") else PORTS.get(scheme.partition("+")[0], 0)
    if parts is None or not port:
        return frozenset()
    servers = addresses(parts, 0, f"store {redact(url)}")
    if scheme == "cassandra":  # its nodes listen on one port
        port = max(each.port for each in servers) or port
    return frozenset(each._replace(port=each.port or port) for each in servers)


def address_of(text: object) -> Address | None:
    """Parse ``host:port``; None: it is something else.

    >>> address_of("Green:6379"), address_of("[::1]:6379"), address_of("green"), address_of("u:p@green:1")
    (Address(host='green', port=6379), Address(host='::1', port=6379), None, None)
    """
    match = HOST.fullmatch(text) if isinstance(text, str) and _is_address(text) else None
    return Address(match[1].strip("[]").lower(), int(match[2])) if match and match[1] and match[2] else None


def _is_address(text: str) -> bool:
    match = HOST.fullmatch(text)
    return match is not None and int(match[2] or 0) <= PORT_MAX


def user_and_password(login: str | None) -> tuple[str, str | None]:
    """Return both, decoded; a password of None: there is no colon, so the login may be either."""
    username, colon, password = (login or "").partition(":")
    return unquote(username), unquote(password) if colon else None


def quoted_path(path: str | os.PathLike[str]) -> str:
    r"""Return a path of files as a URL has it, its bytes that are no UTF-8 too.

    >>> quoted_path("/a b/\udcff"), path_of("file://" + quoted_path("/a b/\udcff"))
    ('/a%20b/%FF', '/a b/\udcff')
    """
    return quote(os.fsencode(path))


def path_of(url: str) -> str | None:
    """Return the decoded path of a URL of files; None: it has a host, query, fragment or NUL, or is
    relative.
    """
    after = url.partition("://")[2]
    path = unquote(after, errors="surrogateescape")
    fits = after.startswith("/") and not re.search(r"[?#]", after) and "\0" not in path
    return path if fits else None


def hide(text: str, secrets: list[str]) -> str:
    """Replace these secrets in the text, wherever a server or a client repeats them."""
    for secret in filter(None, secrets):
        text = text.replace(secret, HIDDEN)
    return text


def hide_forms(text: str, secrets: list[str]) -> str:
    r"""As ``hide``, also where a secret is escaped, and where the text ends within one: servers cut what they
    repeat.

    >>> hide_forms("got 'p\\xe4ss'", ["p\xe4ss"]), hide_forms("refused: 'correct hor'", ["correct horse"])
    ("got '***'", 'refused: ***')
    """
    for secret in filter(None, secrets):
        content = secret.encode("utf-8", "surrogateescape")
        escaped = (repr(secret)[1:-1], ascii(secret)[1:-1], repr(content)[2:-1], quote(secret, safe=""))
        for form in (secret, *escaped):
            text = text.replace(form, HIDDEN)
            shown = text.rstrip("'`\" ")
            cut = _cut_at(shown, form)
            text = shown[:cut].rstrip("'`\"") + HIDDEN if cut >= 0 else text
    return text


def _cut_at(text: str, secret: str) -> int:
    """Return where the end of the text begins that is a beginning of the secret; -1: nowhere."""
    begin = secret[:CUT_MIN]
    start = text.find(begin, max(0, len(text) - len(secret) + 1))
    while start >= 0 and not secret.startswith(text[start:]):
        start = text.find(begin, start + 1)
    return start


# -- expired certificates --------------------------------------------------------------------


CONNECTION_LOST = ("ssl", "eof", "closed", "reset", "disconnect", "aborted", "broken pipe")
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
    if "certificate expired" in words.replace("_", " ") or (
        ended and any(lost in words for lost in CONNECTION_LOST)
    ):
        since = f" on {end:%Y-%m-%d %H:%M} UTC" if ended else ""
        return f"this client's certificate {own or ''} has expired{since}: renew it"
    return ""


def end_of(file: str) -> datetime.datetime | None:
    """Return the end of a certificate's (PEM) validity; None when it cannot be read."""
    import _ssl
    import ssl

    read: Any = vars(_ssl).get("_test_decode_cert")  # Python's own, without a public name
    if read is None:
        return None
    with contextlib.suppress(OSError, ssl.SSLError, KeyError, ValueError):
        seconds = ssl.cert_time_to_seconds(str(read(file)["notAfter"]))
        return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
    return None
