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
    "rekey finished after a way back": "rekey finish back",
    "restore below the queues": "rekey finish restore",
    "import of a version below the queues": "rekey finish export-old import",
    "verify after another number of key groups": "drop-table remake",
    "relog after a clock that was ahead": "ahead batch lose-log clock-back relog",
    "backup without the last records": "adopt backup lose-store lose-log restore-from",
    "an alias of a namespace that was made after the backup": (
        "backup drop restore-from add-store alias remove-store lose-store lose-log restore-from"
    ),
    "a backup of an earlier namespace of the name": (
        "backup drop batch batch export-old import trim lose-store"
    ),
    "a relog of what a backup of a rewound state has made": (
        "rewind backup drop restore-from replace lose-end relog"
    ),
    "verify of a store that the way back does not list": "rekey finish drop batch add-store back",
    "a relog after older copies, into a copy of another version": (
        "copies lose-log relog!apply.before_chunk older-both rename lose-log relog"
    ),
    "an advised end of a rekey, after a table with another key": (
        "rekey drop-table remake-key finish!rekey.after_move"
    ),
    "an advised move to a copy that has a rename": "rekey rename finish!apply.before_chunk",
    "an unfinished copy without its log, of a namespace that was made again": (
        "rekey finish rekey lose-copy-log drop batch rekey"
    ),
    "a backup of a log that lost an adoption": "zombie adopt lose-end backup drop restore-from",
    "a way back to a namespace with fewer stores than the copy's": (
        "rekey finish drop zombie batch!publish.before add-store back lose-end"
    ),
    "backup of a moved namespace": "rekey finish cron",
    "relog of an unfinished copy": "rekey batch lose-copy-log relog-copy",
    "import under a token of a rekey": "export import-rekey",
    "backup of an unfinished copy": "rekey backup-copy",
    "aliases of a namespace that is made again": "alias backup lose-store lose-log restore-from",
    "an unfinished copy is where a moved namespace sends to": "rekey finish!rekey.after_move",
    "a copy that lost its last record is an unfinished one": "rekey finish lose-end",
    "undone batches come again after restore-from": "restore backup lose-store lose-log restore-from",
    "undone batches come again where the log continues": "backup batch restore lose-store restore-from",
    "a query begins from scratch though a second store has the namespace": "add-store lose-store lose-log",
    "a relog whose log lost its only version is a begun one": "lose-end relog lose-end",
    "the name of a relog is taken": "lose-end relog!publish.before drop batch lose-log",
    "undone batches in a relog": "rewind lose-end relog replace rewind",
    "a killed restore-from names itself": "backup drop restore-from!stage.before_ack",
    "relog without an adoption": "adopt lose-log relog",
    "relog without a batch": "replace replace replace lose-log relog",
    "a store that is given again has versions that the log no longer has": (
        "add-store load remove-store trim restore trim add-store"
    ),
    "an older copy has versions that the log no longer has": "copies drop-table trim older-store recover",
    "a backup of a copy whose log lost its end": "rekey finish lose-end cron",
    "an import of older due times": "export due batch import",
    "a copy whose source no longer has a version": "rekey load load batch trim finish",
    "a copy whose store is gone is where a moved namespace sends to": "rekey finish lose-store back",
    "a copy and its source that are both lost": (
        "backup rekey drop-table lose-copy-log trim lose-store relog-copy"
    ),
    "a backup after a relog that follows the checkpoint before": (
        "adopt lose-end relog backup drop restore-from"
    ),
    "a lost primary that another store can fill": "backup load load batch trim add-store lose-store",
    "a checkpoint that was set back before a relog": "restore batch rewind lose-end",
    "an older copy of a store, and a newer second store": "copies lose-store recover add-store older-store",
    "a relog of an older copy whose log was trimmed": "copies restore batch widen trim older-store relog",
    "a log that was trimmed in the middle": (
        "copies clock-back lose-end older-both rewind batch batch trim lose-store"
    ),
    "a rekey after a restore that undid a rewind": "rekey rewind restore backup-copy",
    "a backup of a namespace whose copy was dropped": "rekey finish drop cron",
    "a copy is older than its source": "rekey ahead batch clock-back finish",
    "an alias in a store that lost all else": "add-store alias lose-store lose-log relog",
    "a primary and the log's end are lost": "add-store copies widen lose-store older-log",
    "a batch that a restored state holds": "copies drop-table older-both drop-table rewind restore",
    "an older copy of a primary whose versions another store shows": (
        "copies add-store load trim restore trim older-store"
    ),
    "a batch was decided before its driver was killed, and warned": (
        "copies batch older-both batch!apply.after_begin"
    ),
    "a decision over a lost store, by a driver that was killed": (
        "drop batch replace!apply.after_chunk lose-store trim!apply.before_chunk"
    ),
    "batches that a backup does not have come again": "backup batch batch batch trim lose-store restore-from",
    "batches that a restore has undone are in a relog": "restore lose-end relog load rewind",
    "a backup of a restore that undid a rewind": "rewind restore backup drop restore-from",
    "a store that a killed restore-from made, and the log cannot rebuild": (
        "backup drop-table trim lose-store restore-from!open.before_append"
    ),
    "a batch comes again after a rewind that was killed": "add-store rewind!follow.after_claim",
    "a restore empties a table and does not drop it": "export-old drop-table remake-key restore import",
    "a store that is listed, and was not filled": (
        "export-old backup import trim add-store!follow.after_claim lose-store"
    ),
    "a relog that does not know the last batch, after a rewind": "rewind replace replace lose-log relog",
    "batches that two rewinds undid are in a relog": "rewind replace rewind lose-end relog",
    "a repair of a store that a backup filled, at a version from before the log": (
        "backup drop restore-from batch lose-store restore-from repair"
    ),
    "an alias after a rekey that was killed and whose mark is lost": (
        "zombie rekey alias finish!rekey.after_move lose-end batch!apply.after_begin restore batch"
    ),
    "a namespace of a copy's name, which the query's checkpoint made": (
        "rekey finish drop batch lose-store back"
    ),
    "a batch after a load that was killed by a clock that was ahead": (
        "ahead load!publish.before clock-back batch"
    ),
    "a relog of the second store after a version that only the primary showed": (
        "add-store trim!follow.after_claim lose-store lose-log relog"
    ),
    "an older copy of a store with the rows of the newest version": (
        "copies replace restore older-store lose-end"
    ),
    "a restore-from over an older copy of the store": (
        "copies backup batch add-store!publish.after older-store restore-from"
    ),
    "a namespace of a copy's name that lost its store and its log": (
        "rekey finish drop batch lose-store back adopt lose-copy-log"
    ),
    "a way back with a new checkpoint, after a batch of a killed driver": (
        "rekey batch!decide.after_append finish drop back"
    ),
    "a relog that was begun for an older version": (
        "copies lose-end relog!stage.before_write older-both rename batch lose-log relog"
    ),
    "an import beside a store that does not follow": (
        "add-store remove-store copies adopt export-old add-store older-store import"
    ),
    "a restore-from to a version before the query's first batch": (
        "backup batch adopt rename batch trim lose-store restore-from"
    ),
    "a backup of a moved namespace whose copy lost its log before it was whole": (
        "rekey finish!decide.before_append lose-copy-log backup"
    ),
    "another number of key groups where a killed restore-from made the namespace": (
        "rekey finish backup drop restore-from!decide.before_append"
    ),
    "a killed restore-from over a namespace that was dropped": "backup drop restore-from!publish.after",
    "a rewind after a restore that was killed, and whose rows do not tell": (
        "export batch restore!open.after_claim import!seal.after repair replace rewind"
    ),
    "a relog of a rewind after a batch that was killed": (
        "batch!publish.before rewind lose-end relog load rewind"
    ),
    "an older copy of a primary with an alias, and a whole second store": (
        "copies drop-table alias batch batch trim add-store older-store"
    ),
    "a second store that is given again and lacks versions that the log no longer has": (
        "add-store remove-store replace batch batch trim add-store"
    ),
    "a query that is refused, over a lost store and an older log": (
        "copies replace replace batch add-store!publish.after lose-store batch older-log"
    ),
    "an older log of a rebuild that was killed": (
        "copies replace replace batch lose-store batch!fill.after_begin older-log"
    ),
    "a driver that runs while copies are put back": "copies batch older-both batch batch zombie",
    "an older log of a lost primary whose second store is an older copy, too": (
        "add-store copies trim restore restore older-store batch!stage.before_ack lose-store older-log"
    ),
    "a relog of older copies of both stores": "add-store copies batch batch older-store lose-log relog",
    "a second store that was added after the copy of the log": (
        "drop batch!apply.before_chunk copies add-store repair lose-store older-log"
    ),
    "a backup of an unfinished copy whose source is gone": "rekey lose-store lose-log batch backup-copy",
    "an export while the version of a killed load is not visible": (
        "batch!apply.before_chunk replace!decide.after_append export recover import"
    ),
    "an older log of an older copy that a driver has claimed": (
        "copies batch replace batch trim older-store batch older-log"
    ),
    "a log that lost the first batch of a new checkpoint, and an older copy of its store": (
        "copies adopt batch older-store lose-end"
    ),
    "a log that lost an attempt and the store that was added": (
        "copies add-store batch!apply.after_chunk lose-end older-log"
    ),
    "a relog into a copy with other tables, begun by an older one": (
        "drop-table copies lose-log relog!seal.after older-both restore lose-end"
    ),
    "an adoption lost with the end of its log, and a store that no log rebuilds": (
        "backup widen trim adopt copies adopt older-log lose-store"
    ),
    "a backup of a table with other key groups, and a store that no log rebuilds": (
        "backup rename batch drop-table trim remake add-store remove-store lose-store"
    ),
    "an older copy that is brought to a version which readers no longer have": (
        "copies widen clock-back load batch batch trim older-store batch"
    ),
    "clocks that went back before and after a restore from a backup": (
        "backup batch rename batch trim lose-store clock-back clock-back restore-from rename clock-back"
    ),
    "a backup of a batch that came twice, with rows that expire": "trim!apply.after_begin trim backup",
    "an error about a copy, whose commands got its source's name": "rekey finish lose-log relog adopt cron",
    "an adoption while the log has a store again that was removed": (
        "add-store copies adopt remove-store older-log"
    ),
    "an adoption that a killed command had made, and a move after it": (
        "batch batch batch add-store batch restore!seal.after batch batch!summary.after_append"
        " adopt!follow.after_claim restore rekey finish"
    ),
    "an adoption that a killed command had made, and a restore after it": (
        "add-store adopt!follow.after_claim restore"
    ),
    "a store that was put back and brought on to a version which no reader had since": (
        "copies restore clock-back load rewind export-old import trim older-store batch relog"
    ),
    "a rewind of a namespace that was moved after a restore": "restore rekey finish rewind",
    "an adoption that a killed command had made, over a lost store": (
        "add-store adopt!follow.after_claim lose-store adopt"
    ),
    "a moved namespace, and a store that was listed after it was moved": (
        "rekey finish drop batch add-store cron"
    ),
    "a backup of a namespace that a killed rekey had moved": (
        "lose-log relog rekey finish!apply.after_begin backup"
    ),
    "a copy of a namespace that another query took over after a rewind": "rekey rewind rename adopt rekey",
    "an older copy of a namespace whose move was killed when the new one was whole": (
        "copies rekey drop-table finish!rekey.after_whole older-both"
    ),
    "a rebuild that was killed, at a version that an older copy of the log lacks": (
        "lose-log relog copies load load lose-store recover!apply.after_begin older-log"
    ),
    "a relog of older copies, and a store that has more than they": (
        "copies rename add-store older-log relog!manifest.after_write older-both lose-log"
    ),
    "a lost store that was rebuilt in part, and is filled from another one": (
        "add-store drop-table backup clock-back batch replace restore trim lose-store"
    ),
    "rows of a table that was dropped, which are not dropped yet, and another number of key groups": (
        "drop-table remake copies replace older-both batch trim older-store"
    ),
    "a second backup of a namespace that was made again, whose killed rekey had moved it": (
        "backup drop batch rekey finish!decide.after_append backup"
    ),
    "a log that lost the batch after a rewind, in front of an older store": (
        "restore copies replace rewind batch older-store lose-end load"
    ),
    "a store that is more than one epoch ahead of an older log": (
        "copies adopt replace add-store!follow.after_claim older-both add-store relog"
    ),
    "an older log that lists a store which was removed since, and shows more": (
        "add-store copies rename remove-store lose-store older-log relog"
    ),
    "the end of a log that a killed rekey had marked as moved": (
        "copies batch rekey finish!commit.before_return zombie older-store batch lose-end"
    ),
    "a backup of a restored namespace beside a batch that a killed driver had decided": (
        "restore batch!publish.before backup load lose-store lose-log restore-from"
    ),
    "a relog of a copy that a killed rekey had made whole": (
        "rekey finish!rekey.after_whole lose-copy-log relog-copy"
    ),
    "a restore-from to after a batch that a killed driver had decided": (
        "batch!decide.after_append restore backup drop restore-from"
    ),
    "a begun relog of a namespace with more stores than older copies of it have": (
        "copies add-store lose-log relog!decide.after_append older-both lose-end relog"
    ),
    "a rewind to a relog that knows no last batch, after a batch of a killed driver": (
        "batch!summary.after_append replace restore load lose-log relog drop-table rewind"
    ),
    "a restore after a move that was killed, where the copy has no older version": (
        "batch rekey finish!decide.after_append restore"
    ),
    "a restore-from that leaves a store behind which the list has from a time before": (
        "add-store remove-store rewind rename batch trim add-store backup lose-store"
    ),
    "a relog to a namespace that a killed batch has begun with other key groups": (
        "rekey finish lose-log relog drop batch!manifest.after_write cron"
    ),
    "a build of a derived table by a driver that another one has fenced": "load derive zombie",
}
"""By name, the word that found it."""

KNOWN: dict[str, Known] = {}


def known_as(word: Sequence[str], wrong: str) -> str:
    """Return the name of the known finding that this is; '': it is a new one."""
    return next((name for name, each in KNOWN.items() if wrong and each.is_it(word, wrong)), "")
