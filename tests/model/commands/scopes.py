"""Small alphabets, each of letters that touch a common thing: all their words of four letters are explored.

Every ordered pair of letters is explored by all words of two letters of the whole alphabet.
"""

SCOPES = {
    "a rekey": "batch rekey finish back adopt restore drop-copy",
    "a copy's log and backup": "batch rekey finish lose-copy-log relog-copy backup-copy cron",
    "losses": "batch lose-store lose-log lose-end relog recover repair",
    "older copies": "batch copies older-store older-log older-both recover restore",
    "backups": "batch replace backup lose-store lose-log restore-from restore",
    "backups of what moves": "batch rekey finish relog backup lose-log restore-from",
    "tables": "batch drop-table remake remake-key widen rename restore",
    "totals": "batch derive underive drop-table load replace restore",
    "totals that move": "batch derive restore rekey finish relog",
    "totals elsewhere": "batch derive export import backup restore-from lose-store lose-log",
    "totals and columns": "batch derive underive widen rename remake-key drop-table",
    "exports": "batch export export-old import import-rekey rekey finish",
    "time": "batch ahead clock-back due trim lose-end relog",
    "stores": "batch add-store remove-store lose-store lose-log recover zombie",
    "checkpoints": "batch adopt rewind restore zombie load drop",
    "readers": "batch hold drop restore relog copies older-both",
    "aliases": "batch alias drop rekey finish relog restore-from",
    "upkeep": "batch trim vacuum repair recover load replace",
}
"""By name, the letters. Each scope contains the query's batch."""
