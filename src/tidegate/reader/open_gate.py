"""The entries to the reader: ``connect``, which returns a gate, and ``connect_mirror``. No Spark, no Java.

>>> import tidegate
>>> from tidegate.testing.example import write_flights
>>> write_flights(wal="memory://client", store="memory://client")  # three batches of a writer
>>> gate = tidegate.connect("memory://client", namespace="flights")
>>> gate.version()
3
>>> gate.table("aircraft").get("N14228")
{'carrier': 'UA', 'flights': 2}
>>> with gate.snapshot(version=2) as snap:
...     snap.table("aircraft").get_many(["N14228", "N24211", "N0"])
{'N14228': {'carrier': 'UA', 'flights': 2}, 'N24211': {'carrier': 'UA', 'flights': 1}}
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tidegate.base.clock import Clock
from tidegate.base.deadline import one_call
from tidegate.reader import rules
from tidegate.reader.alias_gate import AliasGate
from tidegate.reader.flow.reader import Reader
from tidegate.reader.gate import Gate
from tidegate.reader.mirror.late import LateGate
from tidegate.reader.mirror.mirror import Mirror, PathLike, Switched
from tidegate.reader.redirects import Follow, RedirectGate
from tidegate.sinks.aliases import Target
from tidegate.sinks.open_store import open_store
from tidegate.wal.log import Log
from tidegate.wal.open_log import open_log


def connect(
    url: str,
    namespace: str,
    options: Mapping[str, Any] | None = None,
    *,
    wal: str | None = None,
    wal_options: Mapping[str, Any] | None = None,
    follow_redirects: Follow = False,
    clock: Clock | None = None,
) -> Gate:
    """Open a gate to one namespace in the store at ``url``; ``options`` are the store client's own.

    ``namespace`` may be an alias (``AliasGate``): then each call reads the namespace that it names as the
    call begins. ``follow_redirects``: servers as ``host:port``. If the store was removed from the namespace,
    continue at the successor that it names, with the same options and login, if that is on these servers or
    on those of ``url`` (``reader/redirects.py``; True: on those of ``url`` alone). Otherwise the first call
    there raises StoreRemovedError. ``wal``: the URL of the namespace's log, which only ``Gate.changes`` and
    ``Gate.job`` read, with the log client's ``wal_options``. Nothing is written.

    Raises: ConfigError: the URL or an option does not fit, or there is no such namespace.
    StoreUnavailableError: no answer.

    >>> connect("memory://nowhere", namespace="flights")
    Traceback (most recent call last):
    tidegate.errors.ConfigError: there is no namespace 'flights' in store memory://nowhere...
    """
    rules.check_url(url)
    if wal is not None:
        rules.check_url(wal, "log", "file:///path")
    clock = clock or Clock()
    if follow_redirects is not False:
        again = functools.partial(
            connect, namespace=namespace, options=options, wal=wal, wal_options=wal_options, clock=clock
        )
        return RedirectGate(url, follow_redirects, again, clock)

    def log_of(name: str) -> Log | None:
        return None if wal is None else open_log(wal, name, wal_options)

    store = open_store(url, namespace, options, clock)
    try:
        with one_call():
            identity = store.identity()
            if identity is None and store.aliases().get(namespace) is not None:
                by_target = functools.partial(gate_of, url, options=options, clock=clock, log_of=log_of)
                return AliasGate(namespace, store, by_target, clock)
            identity = rules.checked_identity(identity, url, namespace)
        return Gate(Reader(store, identity, clock), log_of(identity.name))
    except BaseException:
        store.close()
        raise


def connect_mirror(
    url: str,
    namespace: str,
    tables: Iterable[str],
    options: Mapping[str, Any] | None = None,
    *,
    path: PathLike,
    bytes_max: int | None = None,
    on_version: Switched | None = None,
    follow_redirects: Follow = False,
) -> Mirror:
    """Open a mirror in a file, whose content is read also before the store answers.

    As ``connect(...).mirror(...)``. If the file has the tables, it answers at once, and connects in its
    thread; ``error`` is why it could not, so far. The mirror closes its connections. Raises: as
    ``Gate.mirror``; as ``connect`` if the file is new.
    """
    late = late_gate(url, namespace, options, follow_redirects=follow_redirects)
    mirror = Mirror(late, tables, path=path, bytes_max=bytes_max, on_version=on_version, owns_gate=True)
    mirror.start()
    return mirror


def late_gate(
    url: str, namespace: str, options: Mapping[str, Any] | None, *, follow_redirects: Follow
) -> LateGate:
    """Return the gate of a mirror that starts before its store answers."""
    return LateGate(
        url, namespace, lambda: connect(url, namespace, options, follow_redirects=follow_redirects)
    )


def gate_of(
    url: str,
    target: Target,
    options: Mapping[str, Any] | None,
    clock: Clock,
    log_of: Callable[[str], Log | None],
) -> Gate:
    """Open a gate to an alias's target, for ``AliasGate``.

    Raises: ConfigError: it does not exist, or another namespace has its name.
    """
    store = open_store(url, target.namespace, options, clock)
    try:
        identity = rules.checked_target(store.identity(), store.where, target)
        return Gate(Reader(store, identity, clock), log_of(identity.name))
    except BaseException:
        store.close()
        raise
