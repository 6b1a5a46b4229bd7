"""A TCP proxy that knows Kafka's framing: it loses, holds and doubles the one request or reply a test names.

Of the protocol it understands a frame's size, a request's api key, version and correlation id, and a
reply's correlation id; so any client and any broker may talk through it, without TLS.

    with KafkaProxy([(listen_address, broker_address)]) as proxy:
        lost = proxy.drop_reply(Api.PRODUCE, contains=b"decisions")
        ...
        lost.wait()

On its own it prints what passes:

    tools/run python tests/services/support/kafka/proxy.py --listen HOST:PORT --target HOST:PORT
"""

from __future__ import annotations

import argparse
import signal
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


def _parse(address: str) -> Address:
    host, _, port = address.rpartition(":")
    return host, int(port)


def main() -> None:
    parser = argparse.ArgumentParser(description="Pass Kafka's frames on, and print what passes.")
    parser.add_argument("--listen", required=True, metavar="HOST:PORT")
    parser.add_argument("--target", required=True, metavar="HOST:PORT")
    arguments = parser.parse_args()
    ends = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    with KafkaProxy([(_parse(arguments.listen), _parse(arguments.target))]) as proxy:
        proxy.on_frame(lambda n, direction, kind: print(n, direction, repr(kind), flush=True))
        print("listening on {}:{}".format(*proxy.addresses[0]), flush=True)
        signal.sigwait(ends)


if __name__ == "__main__":
    main()
