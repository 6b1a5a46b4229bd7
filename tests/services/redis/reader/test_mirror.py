"""A mirror in a file beside a real Redis that is away: reads go on, also after a restart of their process."""

import tidegate
from support.wait import wait_until
from tidegate.errors import StoreUnavailableError
from tidegate.options import Options
from tidegate.testing.example import Example


def test_a_mirror_starts_while_redis_is_away_and_then_moves_on(private_redis, tmp_path):
    server = private_redis()
    wal, row = f"file://{tmp_path}/wal", {"carrier": "UA", "flights": 1}
    example = Example(wal, server.url, options=Options(key_groups=4))
    example.write({"aircraft": {"N1": row}})
    example.close()

    def opened():
        of = server.url, "flights", ["aircraft"], {"timeout_s": 1.0}
        return tidegate.connect_mirror(*of, path=tmp_path / "mirror.db")

    opened().close()
    server.stop()
    with opened() as mirror:
        assert mirror.table("aircraft").get("N1") == row
        wait_until(lambda: isinstance(mirror.error, StoreUnavailableError), "the mirror notices")
        server.restart()
        example = Example(wal, server.url, options=Options(key_groups=4))  # lists the restarted server
        version = example.write({"aircraft": {"N2": row}})
        assert mirror.wait_for(version, timeout=60) == version
        assert dict(mirror.table("aircraft").scan()) == {"N1": row, "N2": row}
        wait_until(lambda: mirror.error is None, "the look that moved it ends")
        assert (mirror.moves, mirror.full_reads) == (1, 0)
        example.close()
