"""What opening a namespace costs when its log is long: with and without Summaries, whole and cut.

    tools/run python benchmarks/bench_open_long_log.py --versions 100000

To open is to fold the decision log from its start. The logs are made without syncs, the reading
is what a driver does. The log to compare with has only ever held the last ``--every`` versions.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tidegate.wal.file.format import END, decisions_header, frame_prefix
from tidegate.wal.file.log import FileLog
from tidegate.wal.fold import View, fold, fold_all
from tidegate.wal.record import (
    AnyRecord,
    BatchOrigin,
    Decided,
    Folded,
    Genesis,
    Open,
    Summary,
    TableAt,
    encode_record,
)

LINEAGE = "8a1f6b0e-3c55-4c8e-9a57-2f1a0c1d5b11"
UUID, WRITER = "0123456789abcdef" * 2, "fedcba9876543210"


def records(versions: int, every: int | None) -> Iterator[bytes]:
    """The bytes of a log of so many versions, a Summary after every so many (None: none)."""
    genesis = Genesis(
        namespace=UUID, writer=WRITER, epoch=0, prev_digest="", key_groups=128, name="n", created_at_us=1
    )
    state = fold(None, genesis)
    assert state is not None
    yield encode_record(genesis)
    head = {"namespace": UUID, "writer": WRITER, "epoch": 1}
    opened = Open(**head, prev_digest=state.digest, lineage=LINEAGE)
    yield encode_record(opened)
    state = _after(state, opened)
    for version in range(1, versions + 1):
        decided = Decided(
            **head,
            prev_digest=state.digest,
            attempt=f"{version:016x}",
            version=version,
            origin=BatchOrigin(LINEAGE, 0, version - 1, f"{version:032x}"),
            base_version=version - 1,
            manifest_address=f"{version:016x}-manifest:5:1234",
            manifest_digest=f"{version:032x}",
            tables={"aircraft": TableAt("0123456789abcdef"), "airports": TableAt("fedcba9876543210")},
            parallelism={"n": {"sink": 8}},
            source_offsets=f'[{{"flights-{version}": {{"0": {version}}}}}]',
            decided_at_us=1_800_000_000_000_000 + version,
        )
        yield encode_record(decided)
        state = _after(state, decided)
        if every and version % every == 0 and version < versions:
            yield encode_record(Summary(**head, prev_digest=state.digest, state=state))


def _after(state: Folded, record: AnyRecord) -> Folded:
    after = fold(state, record)
    assert after is not None
    assert after is not state
    return after


def make_log(folder: Path, versions: int, every: int | None) -> FileLog:
    log = FileLog(folder, "n")
    log.create()
    with (log.folder / "decisions.log").open("wb") as file:
        file.write(decisions_header(0))
        for content in records(versions, every):
            file.write(frame_prefix(content) + content + END)
    return log


def seconds_to_open(log: FileLog, repeats: int) -> tuple[float, View]:
    """The median, after one run that warms the caches, and the view."""
    view, taken = View(), []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        view = fold_all(View(), log.decisions())
        taken.append(time.perf_counter() - started)
    return statistics.median(taken[1:]), view


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--versions", type=int, default=100_000)
    parser.add_argument("--every", type=int, default=500, help="versions between Summaries")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        logs = {
            f"the last {args.every} versions only": make_log(Path(folder, "a"), args.every, None),
            "whole, without Summaries": make_log(Path(folder, "b"), args.versions, None),
            "whole, with Summaries": make_log(Path(folder, "c"), args.versions, args.every),
        }
        least = 0.0
        state = None
        for name, log in logs.items():
            seconds, view = seconds_to_open(log, args.repeats)
            least = least or seconds
            state = view.state
            report(name, log, seconds, least)
        cut = logs["whole, with Summaries"]
        cut.trim_decisions(view.summaries[-1].position)
        seconds, view = seconds_to_open(cut, args.repeats)
        assert view.state == state
        report("cut in front of the last Summary", cut, seconds, least)


def report(name: str, log: FileLog, seconds: float, least: float) -> None:
    size_mb = log.size().decisions_bytes / 1e6
    print(f"{name:34} {size_mb:8.2f} MB {1e3 * seconds:9.1f} ms {seconds / least:8.2f} x", flush=True)


if __name__ == "__main__":
    main()
