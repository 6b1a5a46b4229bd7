"""doctor connects without a login, and reports a server that answers."""

import pytest

from services.support.redis.query import query_on
from services.support.redis.rights import Users, guarded
from services.support.redis.server import RedisServer
from tidegate.cli.inspect.doctor_logins import check_open_store

__all__ = ["guarded"]
pytestmark = pytest.mark.xdist_group("redis-hostile")
USER = {"app": "on >secret ~* &* +@all"}


@pytest.mark.parametrize("user", ["tidegate-writer", "tidegate-reader"])
def test_the_file_of_rights_leaves_nothing_open(guarded, tmp_path, user):
    with query_on(guarded.url, tmp_path, timeout_s=5.0) as query:
        query.run(1)
        url = Users(guarded, query).url(user)
        (check,) = check_open_store(url, query.namespace, {})
    assert (check.check, check.outcome) == ("store: login", "pass")


@pytest.mark.parametrize("default", ["on nopass ~* &* +@all", "on nopass %R~* +@read +info"])
def test_a_default_user_that_is_on_makes_the_login_worthless(tmp_path, default):
    with RedisServer(tmp_path, users={"default": default, **USER}) as server:
        (check,) = check_open_store(server.url_for("app", "secret"), "n", {})
        assert check.outcome == "fail"
        assert "anybody without a login" in check.found
        assert "secret" not in check.found
        (check,) = check_open_store(
            server.url_for(None, None), "n", {"username": "app", "password": "secret"}
        )
        assert check.outcome == "fail"


def test_a_server_without_logins_is_a_warning(tmp_path):
    with RedisServer(tmp_path) as server:
        (check,) = check_open_store(server.url, "n", {})
    assert check.outcome == "warn"
    assert "deploy/rights" in check.found


@pytest.mark.parametrize("url", ["memory://x", "sqlite:///x"])
def test_a_store_without_servers_has_no_login(url):
    assert check_open_store(url, "n", {}) == []
