"""Hosts on one machine: network namespaces on a bridge, whose links can be cut, one way too.

    with Hosts() as hosts:      # this process is on the host "outside" from now on
        broker = hosts.add("broker-0")

The bridge is in a namespace of its own, so nothing of this is seen in the machine's network, and no packet
leaves it. It needs root, or CAP_NET_ADMIN and CAP_SYS_ADMIN, and the program ``ip``.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shlex
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

CLONE_NEWNET = 0x40000000
NOWHERE = "02:00:00:00:00:01"
"""An Ethernet address that no host has: what is sent there is lost, and nobody is told."""


class Host(NamedTuple):
    """The address of a server's host, and the words before a command that starts there."""

    address: str = "127.0.0.1"
    prefix: tuple[str, ...] = ()
    namespace: str = ""
    port: str = ""
    """Its port of the bridge."""


THIS = Host()


class Cut(NamedTuple):
    """Two lines of a shell: the first begins a fault, the second ends it, and does nothing else."""

    begin: str
    end: str

    @property
    def commands(self) -> tuple[str, str]:
        return f"sh -c {shlex.quote(self.begin)}", f"sh -c {shlex.quote(self.end)}"


class Hosts:
    """A bridge and the hosts at it, until the context's end. At most 250."""

    def __init__(self) -> None:
        self._name = f"tidegate-{os.getpid()}"
        self._hosts: dict[str, Host] = {}

    def __enter__(self) -> Hosts:  # noqa: PYI034 - nobody inherits from it
        try:
            _ip("netns", "add", self._bridge)
            _ip("-n", self._bridge, "link", "add", "bridge", "type", "bridge")
            _ip("-n", self._bridge, "link", "set", "bridge", "up")
            _enter(self.add("outside").namespace)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the namespaces; this process stays in its own, which ends with it."""
        for namespace in (self._bridge, *(host.namespace for host in self._hosts.values())):
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip("netns", "del", namespace)

    @property
    def _bridge(self) -> str:
        return f"{self._name}-bridge"

    def __getitem__(self, name: str) -> Host:
        return self._hosts[name]

    def add(self, name: str) -> Host:
        """Make a host."""
        number = len(self._hosts) + 1
        namespace, port = f"{self._name}-{name}", f"port-{number}"
        host = Host(f"10.99.0.{number}", ("nsenter", f"--net=/run/netns/{namespace}", "--"), namespace, port)
        self._hosts[name] = host
        _ip("netns", "add", namespace)
        _ip("-n", namespace, "link", "set", "lo", "up")
        peer = ("peer", "name", port, "netns", self._bridge)
        _ip("-n", namespace, "link", "add", "eth0", "type", "veth", *peer)
        _ip("-n", namespace, "address", "add", f"{host.address}/24", "dev", "eth0")
        _ip("-n", namespace, "link", "set", "eth0", "up")
        _ip("-n", self._bridge, "link", "set", port, "master", "bridge", "up")
        return host

    def off(self, host: Host) -> Cut:
        """Cut a host off from all others."""
        change = f"ip -n {self._bridge} link set {host.port}"
        return Cut(f"{change} down", f"{change} up")

    def cut(self, senders: Iterable[Host], receivers: Iterable[Host], *, one_way: bool = False) -> Cut:
        """Lose what these hosts send to the others, and what those send to them."""
        pairs = [(one, other) for one in senders for other in receivers if one != other]
        pairs += [] if one_way else [(other, one) for one, other in pairs]
        begin = [
            f"ip -n {one.namespace} neighbour replace {other.address} lladdr {NOWHERE} nud permanent dev eth0"
            for one, other in pairs
        ]
        end = [
            f"ip -n {one.namespace} neighbour del {other.address} dev eth0 2>/dev/null"
            for one, other in pairs
        ]
        return Cut(" && ".join(begin), "; ".join([*end, "true"]))


def why_not() -> str:
    """Return why hosts cannot be made here; '' if they can. It leaves nothing behind."""
    try:
        _ip("netns", "add", name := f"tidegate-{os.getpid()}-try")
        _ip("netns", "del", name)
    except (OSError, subprocess.CalledProcessError) as error:
        told = getattr(error, "stderr", b"") or str(error).encode()
        return f"network namespaces cannot be made: {told.decode(errors='replace').strip()}"
    return ""


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)


def _enter(namespace: str) -> None:
    """Move this thread, and what it starts, into a network namespace."""
    with Path("/run/netns", namespace).open() as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns into {namespace}")
