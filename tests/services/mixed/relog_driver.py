"""The driver of test_relog.py and test_rekey.py: sums of the files in FOLDER/input, until they are read.

    python relog_driver.py FOLDER NAMESPACE STORE WAL [KEY_GROUPS]

An error of the sink is printed, and the exit code is 1 then.
"""

from __future__ import annotations

import sys
from pathlib import Path

from support.spark_driver import run_query, session
from tidegate.errors import TidegateError
from tidegate.spark import VersionedSink


def main(folder: Path, namespace: str, store: str, wal: str, key_groups: str = "4") -> None:
    spark = session("local[2]", "relog")
    sink = VersionedSink(
        namespace=namespace, store=store, wal=wal, key_groups=int(key_groups), allow_unsafe=True
    )
    commit = sink.each(lambda txn, rows: txn.reduce("sums", rows, "k", reducers={"n": "sum"}))

    def each(rows, batch_id):
        try:
            commit(rows, batch_id)
        except TidegateError as error:
            print(f"{type(error).__name__}: {error}", flush=True)
            raise

    run_query(spark, folder, each)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
