"""The findings that are known and open. An entry is removed with the change that mends it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple


class Known(NamedTuple):
    """``word`` ends in a finding whose text matches; other words with these letters may end in it, too."""

    word: str
    text: str
    letters: str
    why: str

    def is_it(self, word: Sequence[str], wrong: str) -> bool:
        """Whether a word's finding is this one."""
        names = {letter.partition("!")[0] for letter in word}
        return names.issuperset(self.letters.split()) and re.search(self.text, wrong, re.DOTALL) is not None


KNOWN = {
    "backup after a start": Known(
        "replace backup",
        r"\Abackup: .* cannot be restored: .*the manifest of version \d+ cannot be right: table",
        "backup",
        "restore-from gives the versions that it makes again the table starts of the last one",
    ),
    "stream in another history": Known(
        "drop batch batch",
        r"\Astream: .* of another history",
        "",
        "the offset of a stream is a number without its history",
    ),
    "tail in another history": Known(
        "copies batch hold older-both batch batch",
        r"\Atail: .* of another history",
        "",
        "the number after which tail continues has no history",
    ),
    "rekey finished after a way back": Known(
        "rekey finish back batch finish",
        r"\Aafter finish .*version \d+ of \S+ shows|\Awrong batch: the (query started in|replaced query)",
        "rekey finish back",
        "the copy's mark alone decides whether a rekey is finished",
    ),
    "restore below the queues": Known(
        "rekey finish restore",
        r"has a due time and is not in the queue|\Anext batch: after the next batch, an hour later, ",
        "rekey finish restore",
        "a copy has queues of timeouts from its last version on",
    ),
    "import of a version below the queues": Known(
        "rekey finish export-old import",
        r"has a due time and is not in the queue|\Anext batch: after the next batch, an hour later, ",
        "rekey finish export-old import",
        "as a restore to that version",
    ),
    "verify after another number of key groups": Known(
        "drop-table remake",
        r"verify of \S+: .*table ref.*expected no row",
        "drop-table remake",
        "verify compares keys of a table that was dropped with those of the one that was made again",
    ),
    "relog after a clock that was ahead": Known(
        "ahead batch lose-log clock-back relog",
        r"table brief differs from version",
        "ahead",
        "a relog compares both versions at the time of the copy, before the time of the saved version",
    ),
    "backup without the last records": Known(
        "adopt backup lose-store lose-log restore-from",
        r"\Awrong batch: the replaced query \d is accepted",
        "adopt backup restore-from",
        "a backup has the state right after its last decision",
    ),
    "backup of a moved namespace": Known(
        "rekey finish cron",
        r"\Acron: the backup of a moved namespace ends with exit 0",
        "rekey finish cron",
        "a backup does not look whether its namespace was moved",
    ),
    "relog of an unfinished copy": Known(
        "rekey batch lose-copy-log relog-copy",
        r"\Awrong batch: the query started in \S+ is accepted",
        "rekey relog-copy",
        "the marks of a copy are in its log alone",
    ),
    "aliases of a namespace that is made again": Known(
        "alias backup lose-store lose-log restore-from",
        r"\Aalias: .*an alias names namespace .*and another one of that name .* is here",
        "alias backup restore-from",
        "restore-from with a new log gives the namespace another uuid, and leaves its aliases as they were",
    ),
    "an unfinished copy is where a moved namespace sends to": Known(
        "rekey finish!rekey.after_move",
        r"`rekey --to \S+ --finish --yes`: .*is the namespace itself",
        "rekey finish",
        "a moved namespace does not look at its copy, and the copy does not know its source's name",
    ),
    "a copy that lost its last record is an unfinished one": Known(
        "rekey finish lose-end",
        r"`rekey --to \S+ --finish --yes`: .*is the namespace itself",
        "rekey finish lose-end",
        "the marks of a copy are looked at before the histories of log and store are compared",
    ),
    "undone batches come again after restore-from": Known(
        "restore backup lose-store lose-log restore-from",
        r"\Anext batch: after a replay of batch",
        "restore backup restore-from",
        "a new log knows the last batch that the content has, and not the last one that was decided",
    ),
    "a query begins from scratch though a second store has the namespace": Known(
        "add-store lose-store lose-log",
        r"memory://commands-b, namespace \S+: .*(expected|the store of) namespace",
        "add-store lose-store lose-log",
        "a driver that finds neither log nor primary does not look at its other stores",
    ),
    "relog without an adoption": Known(
        "adopt lose-log relog",
        r"\Awrong batch: the replaced query \d is accepted",
        "adopt relog",
        "the catalog of a store knows the query of its last batch, and no query that took over after it",
    ),
    "import under a token of a rekey": Known(
        "export import-rekey",
        r"is being made by a rekey",
        "import-rekey",
        "a token may have the form of a rekey's",
    ),
    "backup of an unfinished copy": Known(
        "rekey backup-copy",
        r"\Abackup: .*cannot be restored: .*is being made by a rekey",
        "rekey backup-copy",
        "restore-from refuses an unfinished copy",
    ),
    "relog without a batch": Known(
        "replace replace replace lose-log relog",
        r"\Anext batch: after a replay of batch",
        "relog",
        "the last batch of a saved namespace is read from the readable versions",
    ),
}


def known_as(word: Sequence[str], wrong: str) -> str:
    """Return the name of the known finding that this is; '': it is a new one."""
    return next((name for name, each in KNOWN.items() if wrong and each.is_it(word, wrong)), "")
