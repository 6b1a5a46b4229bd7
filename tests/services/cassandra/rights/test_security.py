"""Logins, rights and TLS, as a user gives them: in the URL and in ``store_options``."""

import pytest

import tidegate
from services.support.cassandra.query import query_on
from tidegate.errors import ConfigError, StoreUnavailableError
from tidegate.sinks.open_store import open_store

SECRET = "Pa$$-w0rd/"


@pytest.mark.slow  # a node of its own
def test_a_query_and_its_readers_by_login_and_tls_and_who_is_refused(private_cassandra, tmp_path):
    users = {"ann": SECRET, "bob": "b"}
    server = private_cassandra(users=users, mutual=True, settings={"authorizer": "CassandraAuthorizer"})
    server.ask("GRANT ALL ON ALL KEYSPACES TO ann")
    known = {**server.tls_settings, "ssl_check_hostname": False}
    with query_on(server.url, tmp_path, **known) as query:
        query.run(3)
        with tidegate.connect(server.url, query.namespace, query.options) as gate:
            assert gate.version() == 3
        refused = [
            ({"username": "bob", "password": users["bob"]}, ConfigError, "bob"),  # may read nothing
            ({"password": "wrong"}, ConfigError, "password"),
            ({"ssl_ca_certs": "/nowhere"}, ConfigError, "TLS cannot be set up"),
        ]
        for options, kind, words in refused:
            store = open_store(server.url, query.namespace, {**query.options, **options})
            with pytest.raises(kind, match=words) as told:
                store.pointer()
            assert SECRET not in str(told.value)
            store.close()
        plain = {"timeout_s": 3}  # without TLS nobody answers
        store = open_store(server.url, query.namespace, plain)
        with pytest.raises(StoreUnavailableError) as told:
            store.pointer()
        assert SECRET not in str(told.value)
        store.close()
