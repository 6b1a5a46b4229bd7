"""``tidegate verify``: comparison of the store with the log, and of both with their checksums."""

from __future__ import annotations

import contextlib
import sys

import typer

from tidegate.cli.core.app import placed_in, print_message
from tidegate.cli.core.operation import Operation, operation, require_namespace
from tidegate.cli.core.options import examples
from tidegate.cli.core.output import print_json, print_table
from tidegate.committers.operations.verify import Progress, Report
from tidegate.committers.operations.verify import verify as verify_namespace
from tidegate.errors import CorruptError

EXAMPLES = examples(
    "tidegate verify --store sqlite:///data/store --wal file:///data/wal --namespace flights",
    "tidegate verify --json | jq .findings",
)


@operation("tidegate verify", without=("force", "allow_unsafe"))
def verify(work: Operation) -> None:
    """Check the store against the log, and all checksums.

    Reads everything, for every version that can be read: the decision log, every manifest and
    frame that the log still holds, pointer, catalog and schemas, every row from the horizon
    on, the store's own files.

    Exit code 14 when something is wrong, each finding on a line. Nothing is written.
    """
    with work.coordinator() as coordinator:
        with contextlib.suppress(CorruptError):  # the check reports problems of the log
            require_namespace(coordinator)
        progress = _show if sys.stderr.isatty() else _hide
        reports = [verify_namespace(coordinator.log, store, progress) for store in coordinator.stores]
        names = [each.name for each in coordinator.endpoints.stores]
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr)
    findings = [finding for report in reports for finding in report.findings]
    if work.json:
        of_each = [_as_json(work.namespace, report) for report in reports]
        stores = [{"store": name, **each} for name, each in zip(names, of_each, strict=True)]
        facts = of_each[0] if len(reports) == 1 else {"namespace": work.namespace, "stores": stores}
        print_json(placed_in(facts))
    elif findings:
        rows = [(finding.where, finding.expected, finding.found) for finding in findings]
        print_table(["where", "expected", "found"], placed_in(rows))
    else:
        for name, report in zip(names, reports, strict=True):
            _print_nothing_wrong(f"store {name}: " * (len(reports) > 1), report)
    for note in dict.fromkeys(note for report in reports for note in report.notes):
        print_message(f"note: {note}")
    if findings:
        raise typer.Exit(CorruptError.exit_code)


def _print_nothing_wrong(whose: str, report: Report) -> None:
    print(
        f"{whose}nothing wrong: versions {report.oldest} to {report.visible}, {report.rows} changes in"
        f" {report.frames} frames, {report.records} records of the decision log"
        if report.visible
        else f"{whose}nothing wrong: no visible version yet, {report.records} records of the decision log"
    )


def _as_json(namespace: str, report: Report) -> dict[str, object]:
    return {
        "namespace": namespace,
        "findings": [
            {"where": finding.where, "expected": finding.expected, "found": finding.found}
            for finding in report.findings
        ],
        "notes": report.notes,
        "oldest": report.oldest,
        "visible": report.visible,
        "records": report.records,
        "void_records": report.void,
        "frames": report.frames,
        "changes": report.rows,
    }


def _show(progress: Progress) -> None:
    print(
        f"\r\x1b[K{progress.step}: {progress.done} of {progress.total}", end="", file=sys.stderr, flush=True
    )


def _hide(progress: Progress) -> None:
    pass
