"""Histories written by hand: one file, each line ten moments after the one before."""

import msgspec

from tidegate.torture.history import events

NAMESPACE = "made"


def write(folder, *lines, name="p"):
    """Begins with the process and a client 1 of the primary; ``began`` 0: five moments before."""
    lines = [
        events.Started(name=name, role="driver", pid=1, boot="b", wall_us=0),
        events.Connected(client=1, namespace=NAMESPACE),
        *lines,
    ]
    for at, line in enumerate(lines, 1):
        line.at = at * 10
        if getattr(line, "began", None) == 0:
            line.began = line.at - 5
    (folder / f"{name}.jsonl").write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    return folder


def offered(call, batch, *changes, driver="d", **more):
    return events.Offered(
        call=call,
        driver=driver,
        namespace=NAMESPACE,
        batch=batch,
        fingerprint="f",
        changes=list(changes),
        **more,
    )


def rows(**values):
    return events.Change(table="t", rows=values)


def returned(call, version, own=None):
    return events.Returned(call=call, version=version, own=own)


def raised(call, error):
    return events.Raised(call=call, error=error)


def looked(version, client=1):
    return events.Looked(client=client, version=version, began=0)


def held(version, snapshot=1, asked=0):
    return events.SnapshotOpened(client=1, snapshot=snapshot, version=version, asked=asked, began=0)


def read(snapshot=1, absent=(), **found):
    return events.Read(client=1, snapshot=snapshot, table="t", found=found, absent=list(absent), began=0)
