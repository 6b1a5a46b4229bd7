"""``tidegate redis-functions``: installation of this release's functions on the servers of a Redis."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tidegate.base.extras import missing
from tidegate.base.urls import redact
from tidegate.cli.core.config_files import StoreConfigs, stores_given
from tidegate.cli.core.options import Json, Stores, examples
from tidegate.cli.core.output import print_json
from tidegate.errors import ConfigError
from tidegate.options.endpoints import StoreRef

EXAMPLES = examples(
    "tidegate redis-functions --store redis://cache:6379 --store-config admin.properties",
    "tidegate redis-functions --store redis+cluster://h1:6379,h2:6379 --dry-run",
)


def redis_functions(
    store: Stores,
    store_config: StoreConfigs,
    *,
    remove_others: Annotated[
        bool, typer.Option("--remove-others", help="Delete the libraries of other releases.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would change.")] = False,
    json: Json = False,
) -> None:
    """Install the functions of this release on every primary, for users who may not load them.

    The right function|load reaches every user of a server: on a server that several share only its
    administrator has it and runs this command, before a new release of tidegate is used. The library's name
    contains a digest of its text, so it replaces nothing, and clients of other releases go on with theirs.
    A library that has this name and another text is an error.
    """
    refs = stores_given(store, store_config)
    for s in refs:
        if not s.url.partition("://")[0].startswith("redis"):
            raise ConfigError(f"{redact(s.url)} is not Redis: only Redis has functions; give a redis:// URL")
    every = [_installed(s, remove_others=remove_others, dry_run=dry_run) for s in refs]
    if json:
        print_json(every[0] if len(every) == 1 else {"stores": every})
        return
    for one in every:
        for server in one["servers"]:
            has = "has had it" if server["before"] else "would get it" if dry_run else "has it now"
            others = ", ".join(server["others"]) or "none"
            removed = f" ({'would be ' * dry_run}removed)" if remove_others and server["others"] else ""
            print(f"{server['address']}: {one['library']}: {has}; other releases: {others}{removed}")


def _installed(at: StoreRef, *, remove_others: bool, dry_run: bool) -> dict[str, Any]:
    try:
        from tidegate.sinks.redis.client.functions import library_name
        from tidegate.sinks.redis.upkeep.install import install
    except ModuleNotFoundError as error:
        raise missing(f"store {redact(at.url)}", error) from error
    installed = install(at.url, at.options, remove_others=remove_others, dry_run=dry_run)
    servers = [one._asdict() for one in installed]
    return {"store": at.name, "library": library_name(), "dry_run": dry_run, "servers": servers}
