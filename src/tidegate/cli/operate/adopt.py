"""``tidegate adopt``: takeover of a namespace by another Spark checkpoint."""

from __future__ import annotations

import json as json_module
import re
import uuid
from pathlib import Path
from typing import Annotated

import typer

from tidegate.base.urls import path_of, redact, scheme_of
from tidegate.cli.core.config_files import StoreConfigs, WalConfig, endpoints
from tidegate.cli.core.options import AllowUnsafe, Force, Json, Namespace, Stores, Wal, examples, made_here
from tidegate.cli.core.output import print_json
from tidegate.cli.core.stores import fail_if_behind, print_standings, stores_as_json
from tidegate.committers.local_coordinator import coordinator_for, followers_in
from tidegate.committers.opening.open import refuse_if_writer_alive
from tidegate.committers.operations.adopt import adopt as adopt_lineage
from tidegate.errors import ConfigError
from tidegate.options import Options

EXAMPLES = examples(
    "tidegate adopt --lineage 8a1f6b0e-3c55-4c8e-9a57-2f1a0c1d5b11",
    "tidegate adopt --checkpoint /data/checkpoints/flights",
)


def adopt(  # noqa: PLR0913 - its options
    store: Stores,
    wal: Wal,
    namespace: Namespace,
    store_config: StoreConfigs,
    lineage: Annotated[
        str | None,
        typer.Option(metavar="ID", help="The query id, as the refused query's message names it."),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="The new checkpoint's folder; the query id is read there."),
    ] = None,
    wal_config: WalConfig = None,
    *,
    force: Force = False,
    allow_unsafe: AllowUnsafe = False,
    json: Json = False,
) -> None:
    """Let another Spark checkpoint take the namespace over.

    A namespace follows one checkpoint, and refuses any other, since its batches would be
    taken for ones already seen. When a checkpoint was replaced on purpose, adopt the new one:
    its first batch makes the next version. Nothing that is visible changes.
    """
    if (lineage is None) == (checkpoint is None):
        raise ConfigError("give either --lineage ID or --checkpoint FOLDER")
    new = _query_id(str(lineage)) if checkpoint is None else lineage_of(checkpoint)
    where = endpoints(store, wal, namespace, wal_config, store_config)
    with coordinator_for(where, Options(allow_unsafe=allow_unsafe)) as coordinator:
        made_here(coordinator)
        before = coordinator.folded.lineage
        refuse_if_writer_alive(coordinator, "tidegate adopt", force=force)
        recovered = adopt_lineage(coordinator, new)
        standings = [each.catch_up() for each in followers_in(coordinator) if coordinator.epoch]
    if json:
        facts = {"namespace": namespace, "lineage": new, "before": before, "recovered": recovered}
        print_json(facts | ({"stores": stores_as_json(standings)} if standings else {}))
    elif before == new:
        print(f"namespace {namespace} follows query {new} already; nothing was written")
    else:
        print(f"namespace {namespace} follows query {new} from now on (before: {before or 'none'})")
        if recovered:
            print(f"made visible first: version {', '.join(map(str, recovered))}")
        print_standings(standings)
        print("next: start that query; its first batch makes the next version")
    fail_if_behind(standings)


def _query_id(text: str) -> str:
    try:
        return str(uuid.UUID(text))
    except ValueError:
        raise ConfigError(
            f"--lineage {text}: a query id looks like 8a1f6b0e-3c55-4c8e-9a57-2f1a0c1d5b11; the refused"
            " query's message names it, and so does the file metadata in its checkpoint folder"
        ) from None


def lineage_of(checkpoint: str) -> str:
    """Return the query id in a checkpoint folder. Raises: ConfigError with the paths searched."""
    scheme = scheme_of(checkpoint)
    slashes = re.sub(r"^file:/(?!/)", "file:///", checkpoint)  # as Hadoop writes it
    folder = path_of(slashes) if scheme == "file" else checkpoint
    if scheme not in ("", "file") or folder is None:
        raise ConfigError(
            f"a checkpoint at {redact(checkpoint)} cannot be read from here: look at the id in its file"
            ' metadata ({"id":"..."}) and give it as --lineage ID'
        )
    metadata = Path(folder) / "metadata"
    try:
        found = json_module.loads(metadata.read_bytes())["id"]
    except FileNotFoundError:
        raise ConfigError(
            f"{metadata} is not there: {checkpoint} is no checkpoint folder of a query that has started;"
            " start the query on it once, or give --lineage ID"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{metadata} holds no query id: {error}; give --lineage ID instead") from None
    if not isinstance(found, str):
        raise ConfigError(f"{metadata} holds no query id but {found!r}; give --lineage ID instead")
    return found
