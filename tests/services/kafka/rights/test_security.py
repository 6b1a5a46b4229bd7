"""Logins and TLS: the log works over them, a wrong password is found out soon, and no secret is told."""

import json
import logging
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from services.support.kafka.query import Query, within
from services.support.kafka.server import KafkaCluster
from tidegate.committers.opening.open import open_namespace
from tidegate.errors import ConfigError, OutcomeUnknownError
from tidegate.wal.kafka.settings import settings_of
from tidegate.wal.open_log import open_log

pytestmark = pytest.mark.xdist_group("kafka-security")

USER, PASSWORD = "ann", "Pa$$-w0rd/hidden"
WRONG = "wr0ng-Pa$$/hidden-too"
OTHER_SECRET = "key-passw0rd-of-ann"
SOON_S, TIMEOUT_S = 15.0, 60.0
"""Refused within seconds, though the log would wait for an answer much longer."""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    with KafkaCluster(tmp_path_factory.mktemp("kafka"), sasl={USER: PASSWORD}) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory):
    with KafkaCluster(tmp_path_factory.mktemp("kafka"), tls=True) as cluster:
        yield cluster


def options(cluster, **more):
    return {k: v for k, v in cluster.client_settings.items() if k != "bootstrap.servers"} | more


def works_end_to_end(cluster, folder):
    query = Query(cluster.bootstrap, folder, **options(cluster))
    try:
        query.run()
        query.check()
        assert query.log().drop()
    finally:
        query.close()


@pytest.mark.slow
def test_sasl(guarded, tmp_path):
    works_end_to_end(guarded, tmp_path)


def test_tls(encrypted, tmp_path):
    works_end_to_end(encrypted, tmp_path)


@pytest.mark.slow
def test_sasl_over_tls(private_kafka, tmp_path):
    works_end_to_end(private_kafka(sasl={USER: PASSWORD}, tls=True), tmp_path)


METHODS = {
    "create": lambda log: log.create(),
    "decisions": lambda log: list(log.decisions()),
    "append_decision": lambda log: log.append_decision(b"record"),
    "stage": lambda log: log.stage("segment", [b"blob"]),
    "read": lambda log: list(log.read(["A" * 22 + ":0:1:0"])),
    "checks": lambda log: log.checks(),
    "drop": lambda log: log.drop(),
}
ORDINARY = ("create", "append_decision")


def refused(call):
    """The ConfigError of a call that must fail soon."""
    with within(SOON_S), pytest.raises(ConfigError) as caught:
        call()
    return caught.value


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "method", [name if name in ORDINARY else pytest.param(name, marks=pytest.mark.slow) for name in METHODS]
)
def test_a_wrong_password_is_found_out_soon(guarded, caplog, method):
    caplog.set_level(logging.DEBUG, "tidegate.kafka")
    given = options(
        guarded, **{"sasl.password": WRONG, "ssl.key.password": OTHER_SECRET, "timeout_s": TIMEOUT_S}
    )
    log = open_log(f"kafka://{guarded.bootstrap}", "hidden", given)
    error = refused(lambda: METHODS[method](log))
    assert "Authentication failed" in str(error)
    assert "sasl.*" in str(error)
    told = "".join(traceback.format_exception(error)) + caplog.text + repr(error) + log.where
    assert_no_secret(told)
    log.close()


@pytest.mark.slow
def test_a_password_that_is_changed_while_an_append_waits_ends_the_wait(private_kafka):
    """It waited for its whole time-out, and nobody learned of the refusal before."""
    kafka = private_kafka(sasl={USER: PASSWORD})
    login = {"sasl.mechanism": "SCRAM-SHA-256", "timeout_s": 4 * TIMEOUT_S}
    log = open_log(f"kafka://{kafka.bootstrap}", "rotated", options(kafka, **login))
    with closing(log), ThreadPoolExecutor(1) as pool:
        log.create()
        log.append_decision(b"record")
        second = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
        changed = UserScramCredentialUpsertion(USER, second, OTHER_SECRET.encode())
        admin = AdminClient(kafka.client_settings)  # freed only later: its end would fail the change
        for done in admin.alter_user_scram_credentials([changed]).values():
            done.result(TIMEOUT_S)
        kafka.kill(0)
        waiting = pool.submit(log.append_decision, b"record")
        kafka.restart(0)
        with within(SOON_S), pytest.raises(OutcomeUnknownError, match=r"sasl\.\*") as caught:
            waiting.result()
    assert isinstance(caught.value.__cause__, ConfigError), "the log refuses this user, and will again"


def test_a_driver_says_so_too(guarded, tmp_path):
    query = Query(guarded.bootstrap, tmp_path, **options(guarded, **{"sasl.password": WRONG}))
    assert "Authentication failed" in str(refused(lambda: open_namespace(query.driver(), "lineage")))
    query.close()


def assert_no_secret(text):
    for secret in (PASSWORD, WRONG, OTHER_SECRET):
        assert secret not in text
        assert json.dumps(secret)[1:-1] not in text
        assert repr(secret)[1:-1] not in text


def test_settings_do_not_show_secrets():
    login = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": USER}
    given = {**login, "sasl.password": PASSWORD, "ssl.key.password": OTHER_SECRET}
    settings = settings_of("kafka://broker:9092", given)
    assert_no_secret(repr(settings) + str(settings))
    assert_no_secret(settings.hide(f"{PASSWORD} and {OTHER_SECRET}"))


def test_an_option_that_does_not_fit_shows_no_secret():
    given = {"sasl.password": PASSWORD, "security.protocol": "sasl_plaintext", "sasl.mechanism": PASSWORD}
    log = open_log("kafka://127.0.0.1:1", "hidden", given | {"timeout_s": 1})
    with pytest.raises(ConfigError) as caught:
        log.checks()
    assert_no_secret("".join(traceback.format_exception(caught.value)))


def test_a_stranger_to_the_certificate_is_refused_soon(encrypted):
    given = options(encrypted, timeout_s=TIMEOUT_S)
    del given["ssl.ca.location"]
    log = open_log(f"kafka://{encrypted.bootstrap}", "hidden", given)
    assert "certificate verify failed" in str(refused(lambda: list(log.decisions())))
    log.close()
