"""What every kind of server of the tests needs: free ports, a wait with a deadline, an end for processes."""

from __future__ import annotations

import contextlib
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Collection
from pathlib import Path

from services.support.leak_guard import Guarded
from support.wait import wait_until

ROOT = Path(__file__).resolve().parents[3]
START_S = 100.0
PORT_TRIES = 5
# How servers say it; Cassandra has words of its own.
TAKEN = ("Address already in use", "is in use by another process", "Failed to bind port")


def free_ports(count: int, *addresses: str) -> list[int]:
    """Ports that nobody listens at now, at none of the addresses (127.0.0.1 unless told otherwise). They lie
    below those that the system gives to outgoing connections:
    else a client that tries to reach a server that is down could take its port, or get hold of itself."""
    with contextlib.ExitStack() as held:
        ports: list[int] = []
        while len(ports) < count:
            port = random.SystemRandom().randrange(20_000, 32_000)
            with contextlib.suppress(OSError):
                for address in addresses or ("127.0.0.1",):
                    tried = held.enter_context(socket.socket())
                    tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    tried.bind((address, port))
                ports.append(port)
    return ports


def pause(process: Guarded) -> None:
    """SIGSTOP; on return every thread of the process stands still."""
    process.signal(signal.SIGSTOP)

    def stands() -> bool:
        stats = [path.read_text() for path in Path(f"/proc/{process.pid}/task").glob("*/stat")]
        return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)

    wait_until(stands, f"process {process.pid} stands still")


class PortTakenError(Exception):
    """Somebody took a port between our look and the server's start."""


def on_free_ports(start: Callable[[], None]) -> None:
    """Start what takes new ports itself, anew when one of them was taken meanwhile; PORT_TRIES times."""
    for tries_left in reversed(range(PORT_TRIES)):
        try:
            start()
            return
        except PortTakenError:
            if not tries_left:
                raise


def raise_ended(who: str, log: str) -> None:
    """A server has ended by itself: PortTakenError when that was why, else RuntimeError with what it said."""
    if any(words in log for words in TAKEN):
        raise PortTakenError(log)
    raise RuntimeError(f"{who} ended: {log}")


def end_all(processes: Collection[Guarded], stop_s: float) -> None:
    """SIGTERM for each, and SIGKILL for those that run after ``stop_s``; on return they are gone."""
    for process in processes:
        process.signal(signal.SIGTERM)
    end = time.monotonic() + stop_s
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, end - time.monotonic()))
            continue
        process.kill()
