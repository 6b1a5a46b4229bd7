"""Users of a Redis with exactly the rights of deploy/rights/redis.acl."""

from __future__ import annotations

import contextlib
import re

import pytest

from services.support.redis.query import Query
from services.support.redis.server import RedisServer
from services.support.servers import ROOT
from tidegate.sinks.redis.upkeep.install import install

PAGE, FILE = ROOT / "docs" / "redis.md", ROOT / "deploy" / "rights" / "redis.acl"
PASSWORD = "Pa55-of-all"
ALWAYS = {"auth", "hello"}
"""What a client says before it has any right."""
BY_TESTS = {"config|resetstat", "acl|setuser", "acl|deluser", "info"}


def users_of_file() -> dict[str, str]:
    """Every user of the file with its rules, the default user among them."""
    return dict(re.findall(r"^user (\S+) (.*)$", FILE.read_text(), re.MULTILINE))


def rules_of(user: str, namespace: str) -> str:
    """The ACL rules of a user, as the file has them for namespace ``flights``."""
    return users_of_file()[user].removeprefix("on ").replace("flights", namespace)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A server with the file as it is; nobody has set a password yet."""
    users = users_of_file()
    assert "default" in users, "else the server's own default user would be on"
    with RedisServer(tmp_path_factory.mktemp("redis"), users=users) as server:
        server.ask("ACL", "SETUSER", "tidegate-admin", *arguments(rules_of("tidegate-admin", "")))
        install(server.url_for("tidegate-admin", PASSWORD), {}, remove_others=False, dry_run=False)
        yield server


def arguments(rules: str) -> list[str]:
    """Of ACL SETUSER; a selector is one argument."""
    return ["reset", "on", f">{PASSWORD}", *re.findall(r"\(.*?\)|\S+", rules)]


def login_of(url: str) -> dict[str, str]:
    """What ``RedisServer.client`` takes for the login of a URL."""
    user, _, password = url.partition("://")[2].partition("@")[0].partition(":")
    return {"username": user, "password": password}


class Users:
    def __init__(self, server, query: Query) -> None:
        self.server, self.query = server, query

    def url(self, user: str, namespace: str | None = None, *more: str) -> str:
        """A login with the rights of the page for a namespace, and more or fewer."""
        rules = rules_of(user, namespace or self.query.namespace)
        self.server.ask("ACL", "SETUSER", user, *arguments(rules), *more)
        return self.server.url_for(user, PASSWORD)

    @contextlib.contextmanager
    def counted(self):
        """The commands that were called inside, those of functions and scripts too."""
        self.server.ask("CONFIG", "RESETSTAT")
        used: set[str] = set()
        yield used
        stats = self.server.ask("INFO", "commandstats")
        used |= {name.removeprefix("cmdstat_") for name in stats} - BY_TESTS - ALWAYS
