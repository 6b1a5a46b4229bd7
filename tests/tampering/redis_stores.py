"""Hashes of Redis that are changed at random, with the requests and the judgement of ``tampering``.

    python -m tampering.stores --store redis://127.0.0.1:6379 --cases 100000 --seed 1

A case puts back all keys of a small namespace, and then changes one of them: a field's value or name, a field
that is removed or added, or a key that is removed or is of another type. The server should be one for tests
alone.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, NamedTuple

from tampering.stores import CHOSEN, KEY_GROUPS, NAMESPACE, changed, everything, faults, is_found
from tidegate.committers.steps.retire import retire_up_to
from tidegate.options import Options
from tidegate.testing.example import BATCHES, Example

TIMEOUT_S = 2.0
"""The timeout of a call that waits for a state that a change removed."""


class Dump(NamedTuple):
    """A key as it was: Redis's own copy, and the fields of a hash."""

    content: bytes
    fields: dict[bytes, bytes]


class RedisCases:
    """One namespace on a server, put back before each change."""

    def __init__(self, folder: Path, url: str) -> None:
        from redis import Redis

        self.url, self.wal, self.options = url, f"file://{folder}/wal", {"timeout_s": TIMEOUT_S}
        options = Options(key_groups=KEY_GROUPS, keep_versions=2)
        example = Example(self.wal, url, NAMESPACE, options=options)
        for rows in BATCHES:
            example.write(rows)
        driver = example.driver
        retire_up_to(driver.log, driver.store, driver.folded, options, lambda: False)
        example.close()
        self.client = Redis.from_url(url)
        self.pattern = f"tg:{{{NAMESPACE}*"
        self.kept = {key: self._dump(key) for key in sorted(self.client.scan_iter(self.pattern))}
        self.right = everything(url, options=self.options)
        wrong = [one for one in self.right.values() if one.error]
        if wrong or is_found(url, self.wal):
            raise ValueError(f"the namespace is wrong before anything is changed: {wrong}")

    def _dump(self, key: bytes) -> Dump:
        client: Any = self.client
        return Dump(client.dump(key), client.hgetall(key) if client.type(key) == b"hash" else {})

    def close(self) -> None:
        """Remove the namespace and end the connection."""
        self.client.unlink(*self.client.scan_iter(self.pattern), *self.kept)
        self.client.close()

    def run(self, seed: int) -> tuple[str, list[str]]:
        """Run a case; return the change, and what is wrong after it."""
        chance = random.Random(seed)
        self._put_back()
        what = self._change(chance)
        try:
            found = everything(self.url, lambda: chance.random() < CHOSEN, self.options)
            return what, faults(found, self.right, self.url, self.wal)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a traceback
            return what, [f"{type(error).__name__}: {error}"]

    def _put_back(self) -> None:
        with self.client.pipeline(transaction=True) as pipe:
            pipe.unlink(*{*self.kept, *self.client.scan_iter(self.pattern)})
            for key, dump in self.kept.items():
                pipe.restore(key, 0, dump.content)
            pipe.execute()

    def _change(self, chance: random.Random) -> str:
        key = chance.choice(list(self.kept))
        fields = self.kept[key].fields
        if not fields or chance.random() < 0.05:
            self.client.unlink(key)
            if chance.random() < 0.5:
                return f"{key!r} removed"
            other = chance.choice((b"x", b"", b"1"))
            self.client.set(key, other)
            return f"{key!r} is a string now, {other!r}"
        field = chance.choice(list(fields))
        value = fields[field]
        match chance.randrange(8):
            case 0:
                self.client.hdel(key, field)
                return f"{key!r}, field {field!r} removed"
            case 1:
                other = _text(changed(chance, field))
                self.client.hdel(key, field)
                self.client.hset(key, other, value)
                return f"{key!r}, field {field!r} -> {other!r:.80}"
            case 2:
                other = _text(changed(chance, field))
                content = _text(changed(chance, value))
                self.client.hset(key, other, content)
                return f"{key!r}, field {other!r:.80} added: {content!r:.80}"
            case _:
                content = _text(changed(chance, value))
                self.client.hset(key, field, content)
                return f"{key!r}, field {field!r}: {value!r:.80} -> {content!r:.80}"


def _text(value: Any) -> bytes:
    """Encode a value as a client writes it."""
    if isinstance(value, bytes):
        return value
    return str("" if value is None else value).encode(errors="replace")
