"""``tidegate bench``: the comparison on one's own servers."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from tidegate.base.clock import Clock
from tidegate.cli.core.config_files import store_options, wal_options
from tidegate.cli.core.options import AllowUnsafe, Json, examples
from tidegate.cli.core.output import print_json, print_pairs, print_table
from tidegate.cli.core.parquet import refuse_another
from tidegate.cli.inspect.doctor_servers import refuse_unusable
from tidegate.cli.trials.demo import StoreConfig, WalConfig
from tidegate.errors import ConfigError

EXAMPLES = examples(
    "tidegate bench --wal file:///data/wal --store sqlite:///data/store",
    "tidegate bench --wal kafka://broker:9092 --store redis://host:6379 --html bench.html",
    "tidegate bench --wal kafka://broker:9092 --store redis://host:6379 --only throughput --rows 1000000",
)

# Unlike elsewhere not from the environment: its servers may be in use.
Wal = Annotated[str, typer.Option(metavar="URL", help="The log to measure: kafka://..., file:///path.")]
Store = Annotated[
    str,
    typer.Option(metavar="URL", help="The store to measure: redis://..., cassandra://..., sqlite:///path."),
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PART", help="throughput, latency, reads or recovery; may be repeated. Default: all."
    ),
]
Rows = Annotated[int, typer.Option(metavar="N", min=1, help="Rows of a large batch, some 75 bytes each.")]
Keys = Annotated[int, typer.Option(metavar="N", min=0, help="Keys in it; 0: one for each row.")]
Rounds = Annotated[
    int, typer.Option(metavar="N", min=1, help="Batches of each writer, after one to warm up.")
]
SmallBatches = Annotated[int, typer.Option(metavar="N", min=1, help="Small batches, for the latency.")]
Master = Annotated[str, typer.Option(metavar="URL", help="Spark's master, where no session is active.")]
Html = Annotated[Path | None, typer.Option(metavar="FILE", help="Also write an HTML report.")]
Deadline = Annotated[float, typer.Option(metavar="SECONDS", min=1, help="Time limit per part.")]


def bench(  # noqa: PLR0913 - its options
    wal: Wal,
    store: Store,
    wal_config: WalConfig = None,
    store_config: StoreConfig = None,
    *,
    only: Only = None,
    rows: Rows = 200_000,
    keys: Keys = 0,
    rounds: Rounds = 3,
    small_batches: SmallBatches = 50,
    master: Master = "local[2]",
    html: Html = None,
    deadline: Deadline = 600.0,
    allow_unsafe: AllowUnsafe = False,
    json: Json = False,
) -> None:
    """Measure what atomic versions cost here, beside writers without any guarantee.

    All write the same batches alternately, on the same Spark, into the same store: row by row as one
    would first write it, in bulk as fast as its client can, and tidegate. Then small batches, reads,
    and finishing a version from the log. It writes under names of its own, `bench-...`, and removes
    them in the end, also after Ctrl-C. Needs Spark and Java. It keeps servers busy: not beside production.
    """
    from rich.console import Console

    of_wal, of_store = wal_options(wal_config), store_options(store_config)
    refuse_unusable(wal, store, of_wal, of_store)
    run, plan_of = _find("run"), _find("Plan")
    plan = plan_of(
        wal=wal,
        store=store,
        mark=f"bench-{Clock().new_id()[:8]}",
        rows=rows,
        keys=keys,
        rounds=rounds,
        small_batches=small_batches,
        master=master,
        deadline_s=deadline,
        allow_unsafe=allow_unsafe,
        wal_options=of_wal,
        store_options=of_store,
        **({"parts": tuple(only)} if only else {}),
    )
    if html is not None:
        refuse_another(html, b"<!doctype html>", "page")
        html.touch()  # an unwritable file is reported before the measurement
    console = Console(stderr=True)
    with console.status("starting") as status:

        def tell(what: str) -> None:
            if console.is_terminal:
                status.update(what)
            else:
                console.print(what, highlight=False, markup=False, soft_wrap=True)

        report = run(plan, tell)
    if html is not None:
        html.write_text(importlib.import_module("tidegate.bench.page").page(report))
    if json:
        print_json(msgspec.to_builtins(report))
        return
    print_pairs(report.settings.items())
    print_table(("part", "figure", "who", "value", "ratio"), report.rows())
    for each in report.left_out:
        print(f"left out: {each}")


def _find(name: str) -> Any:
    try:
        return getattr(importlib.import_module("tidegate.bench"), name)
    except ImportError as error:
        if error.name is None or error.name.startswith("tidegate"):
            raise
        raise ConfigError(f"the comparison needs {error.name}: pip install 'tidegate[spark]'") from None
