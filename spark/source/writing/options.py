"""The options of ``writeStream.format("tidegate")``, validated."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from tidegate.base.names import did_you_mean
from tidegate.base.text import brief
from tidegate.errors import ConfigError
from tidegate.options import Options, SinkOptions
from tidegate.options.endpoints import Endpoints
from tidegate.spark.calls.checks import check_table

PLACES = ("namespace", "store", "table", "wal", "storeOptions", "walOptions", "checkpointLocation")
OF_PREPARE = ("key", "order_by", "newer_by", "delete_when", "value", "parallelism", "key_groups")
"""Arguments of ``prepare``, by which rows are made and placed before they come here."""
OF_THE_SINK = (
    *("small_batch_rows", "affinity", "table_key_groups", "function_deadline_s", "commit"),
    *("local_dir", "state_cache_bytes", "state_memory_bytes", "metrics_port"),
)
"""Options of ``VersionedSink`` for what this format does not do."""
OF_COMMITS = tuple(name for name in SinkOptions.__annotations__ if name not in (*OF_PREPARE, *OF_THE_SINK))
OF_SPARK = ("queryname",)
"""Options that Spark adds itself: the name of the query, which each flow of a declarative pipeline has."""
EXAMPLES = {
    "namespace": "flights",
    "store": "redis://cache:6379/0",
    "table": "aircraft",
    "wal": "kafka://broker:9092",
    "checkpointLocation": "/data/checkpoints/aircraft",
}


@dataclasses.dataclass(frozen=True)
class WriteOptions:
    """Where a query writes, and how its versions are committed. ``options`` are those of a sink, as given."""

    endpoints: Endpoints
    table: str
    checkpoint: str
    options: dict[str, Any]

    @classmethod
    def of(cls, texts: Mapping[str, str]) -> WriteOptions:
        """Parse Spark's options, whose names are case-insensitive. Raises: ConfigError: one is wrong."""
        known = {name.lower(): name for name in (*PLACES, *OF_COMMITS)}
        given: dict[str, str] = {}
        for name, text in texts.items():
            lower = name.lower()
            if lower in OF_SPARK:
                continue
            if lower in OF_PREPARE:
                raise ConfigError(
                    f"writeStream.format('tidegate') has no option {brief(name)}, which decides how rows are"
                    f" placed: give it to prepare(df, {lower}=...). Nothing was written"
                )
            if lower not in known:
                names = ", ".join(known.values())
                raise ConfigError(
                    f"writeStream.format('tidegate') has no option {brief(name)}; there are {names}; nothing"
                    f" was written{did_you_mean(lower, known)}"
                )
            given[known[lower]] = text
        for name, example in EXAMPLES.items():
            if not given.get(name):
                raise ConfigError(
                    f"writeStream.format('tidegate') needs the option {brief(name)}, as in"
                    f" .option({brief(name)}, {example!r}). Nothing was written"
                )
        table = given["table"]
        check_table(table)
        options = {name: _value(given[name]) for name in OF_COMMITS if name in given}
        if "ttl" in options and not isinstance(options["ttl"], dict):
            options["ttl"] = {table: options["ttl"]}
        Options.of(options)
        places = [given.get(name, "") for name in ("walOptions", "storeOptions")]
        store = _value(given["store"]) if given["store"].startswith("[") else given["store"]
        if store == given["store"] and store.startswith("["):
            raise ConfigError(
                "the option store begins with [ and is no list of JSON: several stores are given as in"
                ' ["redis://cache:6379/0", "copy=redis://other:6379/0"]. Nothing was written'
            )
        endpoints = Endpoints.of(given["namespace"], given["wal"], store, *map(_client_options, places))
        if any(url.startswith("memory:") for url in (endpoints.wal, *(ref.url for ref in endpoints.stores))):
            raise ConfigError(
                "writeStream.format('tidegate') writes in several processes, which share no memory:// log or"
                " store: give others, such as file:// and sqlite://. Nothing was written"
            )
        return cls(endpoints, table, given["checkpointLocation"], options)


def _value(text: str) -> Any:
    """Return a number, true, false, a list or an object; any other text is one."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _client_options(text: str) -> dict[str, Any] | None:
    value = _value(text or "{}")
    if not isinstance(value, dict):
        raise ConfigError(
            'walOptions and storeOptions must be JSON objects, as in {"socket_timeout": 5}. Nothing was'
            " written"
        )
    return value
