"""``tidegate conformance``: prove a reader in any language against a store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.core.config_files import store_options
from tidegate.cli.core.options import Json, examples
from tidegate.cli.core.output import print_json
from tidegate.cli.inspect.doctor_servers import refuse_unusable
from tidegate.errors import ConfigError, TidegateError

if TYPE_CHECKING:
    from tidegate.testing.conformance.run import Result

EXAMPLES = examples(
    "tidegate conformance './my-reader --json' --store redis://localhost:6379",
    "tidegate conformance 'python -m tidegate.testing.conformance.reader' --store sqlite:///tmp/store",
    "tidegate conformance --list",
)

Command = Annotated[
    str, typer.Argument(metavar="CMD", help="The reader: a program that speaks the protocol.")
]
# Unlike elsewhere not from the environment: its server may be in use.
Store = Annotated[
    str,
    typer.Option(metavar="URL", help="The store to write to: redis://..., cassandra://..., sqlite:///path."),
]
StoreConfig = Annotated[
    Path | None,
    typer.Option("--store-config", metavar="FILE", help="The store's options: a file of name=value lines."),
]
Only = Annotated[list[str] | None, typer.Option(metavar="CHECK", help="Run this check alone. Several times.")]


def conformance(
    command: Command = "",
    store: Store = "",
    store_config: StoreConfig = None,
    only: Only = None,
    *,
    listed: Annotated[bool, typer.Option("--list", help="Print the names of the checks.")] = False,
    json: Json = False,
) -> None:
    """Drive a reader, in any language, through every case of the storage format, and compare its answers.

    It writes namespaces of its own, named conformance-..., and removes them in the end, also after Ctrl-C.
    The reader answers requests on its standard input and output: conformance/README.md has the protocol.

    Exit code 0 when no check failed, 1 when one did, 2 when it could not begin.
    """
    from tidegate.testing.conformance.checks import CHECKS
    from tidegate.testing.conformance.run import FAILED
    from tidegate.testing.conformance.run import conformance as run

    if listed:
        if json:
            print_json({"checks": list(CHECKS)})
        else:
            print("\n".join(CHECKS))
        return
    if not command or not store:
        raise ConfigError("give the reader's command and --store, as in tidegate conformance CMD --store URL")
    options = _to_make(store) | store_options(store_config)
    refuse_unusable(None, store, {}, options)
    results = run(command, store, options, only=only or (), report=_none if json else _print)
    if json:
        print_json({"checks": [result._asdict() for result in results], "counts": _counts(results)})
    else:
        print(", ".join(f"{number} {outcome}" for outcome, number in _counts(results).items()))
    if any(result.outcome == FAILED for result in results):
        raise typer.Exit(TidegateError.exit_code)


def _none(_: Result) -> None:
    pass


def _print(result: Result) -> None:
    print(f"{result.outcome:7} {result.name}" + f": {result.text}" * bool(result.text), flush=True)


def _counts(results: list[Result]) -> dict[str, int]:
    return {
        outcome: sum(result.outcome == outcome for result in results)
        for outcome in ("passed", "skipped", "failed")
    }


def _to_make(store: str) -> dict[str, Any]:
    """Return the options to create Cassandra's tables, which elsewhere only `tidegate init` does."""
    return {"create": True} if store.startswith("cassandra:") else {}
