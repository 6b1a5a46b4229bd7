"""``tidegate ui``: a page of a namespace's state, for a browser on this machine."""

from __future__ import annotations

import contextlib
from typing import Annotated

import typer

from tidegate.base.names import check_name
from tidegate.base.urls import addresses, parts_of, redact, scheme_of
from tidegate.cli.core.app import print_message
from tidegate.cli.core.config_files import StoreConfigs, WalConfig, stores_given, wal_options
from tidegate.cli.core.options import MaybeWal, Namespace, Stores, examples
from tidegate.errors import ConfigError, TidegateError
from tidegate.sinks.capabilities import SupportsNamespaces
from tidegate.sinks.open_store import open_store
from tidegate.status.look import Places

METRICS = "http://127.0.0.1:9464/metrics"
"""The metrics of a driver on this machine with the port that the documentation recommends."""
EXAMPLES = examples(
    "tidegate ui --store sqlite:///data/store --wal file:///data/wal --namespace flights",
    "tidegate ui --metrics http://127.0.0.1:9464/metrics --port 8765",
)


def ui(  # noqa: PLR0913, PLR0917 - options of a command
    store: Stores,
    namespace: Namespace,
    store_config: StoreConfigs,
    wal: MaybeWal = None,
    wal_config: WalConfig = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help=f"The driver's metrics, for the phases of each version; default: {METRICS}."
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Listen here; the page has no password.")
    ] = "127.0.0.1",
    name: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="A further name in browsers' requests, as behind a proxy; several times."
        ),
    ] = None,
    port: Annotated[
        int, typer.Option(metavar="N", min=0, max=65_535, help="Listen there; 0: any that is free.")
    ] = 8765,
) -> None:
    """Serve a page of versions, lag, stores, tables, leases and faults, until Ctrl-C. Writes nothing.

    Without --wal only what the stores know. Rows of a table, one key's history and the differences of two
    versions can be looked up in it. The store's other namespaces can be chosen; on Redis they are found by
    scans of the names of all keys, which take at most 1 % of the time.
    """
    from tidegate.ui.facts import Facts  # it imports from this package
    from tidegate.ui.server import Server
    from tidegate.ui.spaces import Spaces

    check_name("namespace", namespace)
    if metrics is not None:
        check_metrics(metrics)
    ats, options = stores_given(store, store_config), {} if wal is None else wal_options(wal_config)
    _look_once(Places(ats, namespace, wal, options))

    def opened(chosen: str) -> Facts:
        return Facts(chosen, ats, wal, options, metrics or METRICS, is_guess=metrics is None)

    def listed() -> list[str]:
        with contextlib.closing(open_store(ats[0].url, namespace, ats[0].options)) as place:
            return place.namespaces() if isinstance(place, SupportsNamespaces) else []

    spaces = Spaces(opened(namespace), listed, opened)
    server = Server(spaces.facts(""), host, port, name or (), spaces)
    print_message(f"{server.url} shows namespace {namespace}; Ctrl-C ends it")
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()
        spaces.close()


def check_metrics(url: str) -> None:
    """Raise ConfigError for a URL that cannot be a driver's metrics, which have no login."""
    parts, shown = parts_of(url), f"--metrics {redact(url)}"
    if scheme_of(url) not in ("http", "https") or parts is None or parts.login is not None:
        raise ConfigError(f"{shown}: it must be a URL without a login, such as http://127.0.0.1:9464/metrics")
    addresses(parts, 80, shown)


def _look_once(places: Places) -> None:
    """Refuse a wrong name or URL at once; warn of a server that does not answer now."""
    with contextlib.closing(places):
        try:
            places.look()
        except ConfigError:
            raise
        except TidegateError as error:
            print_message(f"warning: {type(error).__name__}: {error}")
