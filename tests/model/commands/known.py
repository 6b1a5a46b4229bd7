"""The findings of this model: those that are open, and those that were mended, whose words hold since."""

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


MENDED = {
    "backup after a start": "replace backup",
    "stream in another history": "drop batch batch",
    "tail in another history": "copies batch hold older-both batch batch",
    "rekey finished after a way back": "rekey finish back batch finish",
    "restore below the queues": "rekey finish restore",
    "import of a version below the queues": "rekey finish export-old import",
    "verify after another number of key groups": "drop-table remake",
    "relog after a clock that was ahead": "ahead batch lose-log clock-back relog",
    "backup without the last records": "adopt backup lose-store lose-log restore-from",
    "backup of a moved namespace": "rekey finish cron",
    "relog of an unfinished copy": "rekey batch lose-copy-log relog-copy",
    "import under a token of a rekey": "export import-rekey",
    "backup of an unfinished copy": "rekey backup-copy",
}
"""By name, the word that found it."""

KNOWN = {
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
    "relog without a batch": Known(
        "replace replace replace lose-log relog",
        r"\Anext batch: after a replay of batch",
        "relog",
        "the last batch of a saved namespace is read from the readable versions",
    ),
    "a relog that lost its last record is an unfinished one": Known(
        "lose-log relog lose-end",
        r"is being made by a relog, and has no version yet",
        "relog lose-end",
        "the mark of a relog is looked at before the histories of log and store are compared",
    ),
    "the name that is proposed for a relog is taken": Known(
        "lose-end relog!publish.before drop batch lose-log",
        r"has \d+ versions, and none is a copy of version \d+ of namespace \S+: give another name",
        "relog",
        "the error proposes a name without a look at what an unfinished relog left there",
    ),
    "undone batches are in a relog, and come again after a rewind there": Known(
        "rewind lose-end relog replace rewind",
        r"\Anext batch: after the next batch, version \d+ of \S+ shows",
        "rewind relog",
        "the model: undone batches count as batches of the content that a relog saves (`relogged`)",
    ),
    "a killed restore-from does not name itself": Known(
        "backup drop restore-from!stage.before_ack",
        r"the log began from a backup, after version \d+, and never had its rows",
        "backup restore-from",
        "adopt in a namespace whose restore was killed says what the log lacks, and no next step",
    ),
    "a store that is given again has versions that the log no longer has": Known(
        "add-store load remove-store trim restore trim add-store",
        r"verify of \S+: .*expected to be there: the version is not retired",
        "remove-store trim add-store",
        "a store that was removed keeps its horizon, and verify expects the log to have all from there on",
    ),
    "the stores of a namespace that began from scratch differ": Known(
        "add-store lose-store lose-log batch lose-log",
        r"the stores given are of different namespaces named",
        "add-store lose-store lose-log",
        "as a query that begins from scratch: its second store still has the earlier namespace",
    ),
}


def known_as(word: Sequence[str], wrong: str) -> str:
    """Return the name of the known finding that this is; '': it is a new one."""
    return next((name for name, each in KNOWN.items() if wrong and each.is_it(word, wrong)), "")
