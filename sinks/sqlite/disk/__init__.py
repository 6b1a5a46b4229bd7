"""The disk of a SQLite store: folders, files, tables, connections, and the meaning of their errors.

Published in docs/storage-format.md::

    <path>/.tidegate                       the mark of a folder that holds stores
    <path>/<escape(namespace)>/meta.sqlite        identity, pointer, leases, catalog, schemas
    <path>/<escape(namespace)>/shard-NN.sqlite    rows; min(16, key_groups) files, key group g in
                                                  file g * files // key_groups

All files are in WAL mode (SQLite's own write-ahead log, beside each file as ``-wal``).

Durability. A commit with ``synchronous=FULL`` fsyncs the ``-wal`` file before any other connection
can see the commit; one with NORMAL does not fsync. There is one ``-wal`` per file, for all
processes, filled from front to back, and an fsync covers all earlier writes of any process. So a
FULL commit makes every earlier commit on that file durable, whichever process made it. A checkpoint
does not weaken this: in either mode it fsyncs the ``-wal`` before it copies a page into the main
file, and the main file before the ``-wal`` is reused from the front; at any time a commit is whole
in one of the two. After a power cut recovery ends at the first frame that does not fit its
checksum: the lost commits are always the last ones. Applied rows and their count are one commit, so
they are both there or both lost.

One trap remains: a process killed between writing a FULL commit's frames and their fsync. The next
process to open the file sees that commit, though nothing made it durable. So code that reports data
as already durable must not rely on a read: see ``DURABLE``.
"""
