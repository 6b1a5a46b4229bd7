"""The writer's column of the table of a server's errors: each reply of the table under a writer."""

import contextlib

import pytest

from services.support.redis.proxy import RedisProxy
from support.refusals import ERRORS, REPLIES, USES_EVAL, WRITER
from tidegate.options import Options
from tidegate.options.endpoints import StoreRef
from tidegate.sinks.redis.client.replies import PASSING
from tidegate.testing.example import Example

TIMEOUT_S = 1.0
SOON = Options(key_groups=8, apply_deadline_s=2.0)


def rows(flights):
    return {"aircraft": {"N1": {"carrier": "UA", "flights": flights}}}


@pytest.mark.slow  # some wait for a deadline
@pytest.mark.parametrize(
    "reply, effect", [pytest.param(*each, id=each[0]) for each in REPLIES if USES_EVAL not in each[0]]
)
def test_a_writer_does_what_its_column_says(redis, namespace, tmp_path, reply, effect):
    """The reply comes to each call of a function: for a while where it may pass, and until the call ends."""
    with RedisProxy(("127.0.0.1", redis.port)) as proxy:
        url = f"redis://127.0.0.1:{proxy.address[1]}"
        store = StoreRef("redis", url, {"timeout_s": TIMEOUT_S})
        with contextlib.closing(
            Example(f"file://{tmp_path}/wal", [store], namespace, options=SOON)
        ) as writer:
            assert writer.write(rows(1)) == 1
            if effect in PASSING:
                proxy.refuse_with(reply, "FCALL", times=2)
                assert writer.write(rows(2)) == 2
            visible = writer.driver.store.pointer().visible
            rule = proxy.refuse_with(reply, "FCALL", times=None)
            with pytest.raises(ERRORS[effect][WRITER]):
                writer.write(rows(3))
            assert rule.hits
            assert writer.driver.store.pointer().visible == visible
            proxy.clear()
        with contextlib.closing(
            Example(f"file://{tmp_path}/wal", [store], namespace, options=SOON)
        ) as writer:
            assert writer.driver.store.pointer().visible == visible + 1
            assert writer.write(rows(4)) == visible + 2
