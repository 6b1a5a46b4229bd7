"""A TCP proxy that knows Kafka's framing: it loses, holds and doubles the one request or reply a test names.

Of the protocol it understands a frame's size, a request's api key, version and correlation id, and a
reply's correlation id; so any client and any broker may talk through it, without TLS.

    with KafkaProxy([(listen_address, broker_address)]) as proxy:
        lost = proxy.drop_reply(Api.PRODUCE, contains=b"decisions")
        ...
        lost.wait()
"""

from __future__ import annotations

from collections.abc import Sequence

from services.support.kafka.wire import KafkaWire
from services.support.proxy.proxy import Proxy
from services.support.proxy.relay import Address
from services.support.proxy.rules import Seen


class KafkaProxy(Proxy):
    """A route per broker; ``kind`` is an Api, or None for any."""

    def __init__(self, routes: Sequence[tuple[Address, Address]]) -> None:
        super().__init__(KafkaWire(), routes)

    @property
    def seen(self) -> list[Seen]:
        """The last frames that arrived."""
        return self.frames
