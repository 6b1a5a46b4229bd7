"""Play the game day: every incident on real servers, one after the other, and a table of what became of it.

    python -m game_day.run [--only NAME,...] [--list] [--third] [--patience N] [--json FILE] [--markdown FILE]

``--json`` adds the rows to the file, in place of older rows of the same incidents. ``--markdown`` writes the
table of all rows of ``--json`` between the marks of a page. The exit code is 0 when every
incident ended with right data.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
import traceback
from pathlib import Path

from game_day.incident import Result, play
from game_day.incidents import ALL
from game_day.table import line, merge, write_page


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("game_day.run", description="Play incidents on real servers.")
    parser.add_argument("--only", default="", help="names of incidents, with commas")
    parser.add_argument("--list", action="store_true", help="print the names")
    parser.add_argument("--third", action="store_true", help="only the fast ones")
    parser.add_argument(
        "--patience", type=float, default=1.0, help="a factor of all waits, on a busy machine"
    )
    parser.add_argument("--json", type=Path, help="the record of the rows")
    parser.add_argument("--markdown", type=Path, help="the page that gets the table of the record")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    names = set(filter(None, options.only.split(",")))
    unknown = names - {incident.name for incident in ALL}
    if unknown:
        parser.error(f"no incident {', '.join(sorted(unknown))}: see --list")
    chosen = [each for each in ALL if (not names or each.name in names) and (each.fast or not options.third)]
    if options.list:
        print("\n".join(f"{each.name:28}{each.title}" for each in chosen))
        return 0
    passed = True
    for incident in chosen:
        if lacking := incident.missing():
            print(f"not played: {incident.name}: {lacking}")
            continue
        began = time.monotonic()
        try:
            result = play(incident, patience=options.patience)
        except Exception:  # noqa: BLE001 - the others are played
            traceback.print_exc()
            result = Result(incident.name, incident.title, incident.actor, recount="the play failed")
        passed = passed and result.passed
        print(f"{line(result)}\n  [{time.monotonic() - began:.0f} s]", flush=True)
        if options.json:
            merge(options.json, result)
    if options.markdown:
        write_page(options.markdown, options.json)
    return 0 if passed else 1


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
