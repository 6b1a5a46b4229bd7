"""From a URL and options to what Kafka's clients are given."""

import pytest

from tidegate.errors import ConfigError
from tidegate.wal.kafka.settings import FIXED, IN_A_COMMAND, LEAST, OURS, KafkaSettings, settings_of

SECRETS = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "ann",
    "sasl.password": "open sesame",
    "ssl.key.password": "key secret",
    "ssl.key.pem": "-----BEGIN PRIVATE KEY-----",
    "sasl.oauthbearer.client.secret": "bearer",
}


@pytest.mark.parametrize(
    "url,brokers",
    [
        ("kafka://one:9092", "one:9092"),
        ("kafka://one", "one"),
        ("kafka://one:9092/", "one:9092"),
        ("kafka://one:9092,two.example.org:9093,10.0.0.3", "one:9092,two.example.org:9093,10.0.0.3"),
        ("kafka://[::1]:9092", "[::1]:9092"),
    ],
)
def test_the_brokers_stand_in_the_url(url, brokers):
    assert settings_of(url, {}).brokers == brokers


@pytest.mark.parametrize(
    "url",
    [
        "kafka://",
        "kafka:///",
        "kafka://one:9092/prefix",
        "kafka://one:port",
        "kafka://one,,two",
        "kafka://a b",
    ],
)
def test_what_names_no_brokers_is_refused(url):
    with pytest.raises(ConfigError, match=r"kafka://host1:9092,host2:9092"):
        settings_of(url, {})


def test_a_password_in_the_url_is_refused_and_not_shown():
    with pytest.raises(ConfigError, match=r"sasl\.username and sasl\.password") as caught:
        settings_of("kafka://ann:sesame@one:9092", {})
    assert "sesame" not in str(caught.value)


@pytest.mark.parametrize("name", FIXED)
def test_what_the_promises_rest_on_cannot_be_changed(name):
    with pytest.raises(ConfigError, match=f"{name}.*cannot be given"):
        settings_of("kafka://one", {name: "1"})


def test_an_unknown_option_of_ours_is_named_with_those_there_are():
    with pytest.raises(
        ConfigError, match=r"unknown option partition, topicprefix .*topic_prefix, partitions"
    ):
        settings_of("kafka://one", {"topicprefix": "x", "partition": 1})


@pytest.mark.parametrize(
    "name,value",
    [
        ("partitions", 0),
        ("partitions", 10_001),
        ("partitions", True),
        ("partitions", "8"),
        ("replication_factor", 0),
        ("min_insync_replicas", 2.0),
        ("timeout_s", 0.5),
        ("timeout_s", 3601),
        ("timeout_s", float("nan")),
        ("timeout_s", "30"),
        ("topic_prefix", ""),
        ("topic_prefix", "a/b"),
        ("sasl.username", ["ann"]),
        *((name, least - 1) for name, least in LEAST.items()),
        ("receive.message.max.bytes", "1000000"),
        ("queue.buffering.max.kbytes", "a"),
    ],
)
def test_a_value_out_of_range_is_refused(name, value):
    with pytest.raises(ConfigError, match=name):
        settings_of("kafka://one", {name: value})


@pytest.mark.parametrize("name", LEAST)
def test_a_client_that_could_never_send_a_record_or_receive_one_is_refused(name):
    with pytest.raises(
        ConfigError, match=f"{name} of a kafka log must be at least {LEAST[name]:,}, .*raise it"
    ):
        settings_of("kafka://one", {name: 1})
    assert settings_of("kafka://one", {name: str(LEAST[name])}).client[name] == str(LEAST[name])


def test_our_options_are_taken_and_not_passed_on():
    given = {
        "topic_prefix": "p",
        "partitions": 3,
        "replication_factor": 2,
        "min_insync_replicas": 1,
        "timeout_s": 7,
        "credential_provider": "logins:of_ann",
    }
    given |= {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}
    client = {name: value for name, value in given.items() if "." in name}
    assert set(given) - set(client) == set(OURS)
    settings = settings_of("kafka://one", given)
    assert settings == KafkaSettings("one", "p", 3, 2, 1, 7, client, "logins:of_ann")
    for made in (settings.for_admin(), settings.for_producer(), settings.for_consumer()):
        assert not set(made) & set(OURS)


def test_an_option_that_is_none_counts_as_not_given():
    assert settings_of("kafka://one", {"replication_factor": None}).replication_factor is None


def test_client_options_reach_the_clients_they_are_for():
    settings = settings_of(
        "kafka://one",
        {**SECRETS, "compression.type": "lz4", "fetch.min.bytes": 1, "linger.ms": 3, "client.id": "me"},
    )
    for made in (settings.for_admin(), settings.for_producer(), settings.for_consumer()):
        assert SECRETS.items() <= made.items()
        assert made["bootstrap.servers"] == "one"
        assert made["client.id"] == "me"
    assert settings.for_producer()["compression.type"] == "lz4"
    assert settings.for_producer()["linger.ms"] == 3
    assert settings.for_consumer()["fetch.min.bytes"] == 1
    assert "fetch.min.bytes" not in {**settings.for_producer(), **settings.for_admin()}
    assert "compression.type" not in {**settings.for_consumer(), **settings.for_admin()}


def test_a_reader_that_takes_its_time_is_not_kept_waiting():
    """The client's default is a second, in which a queue that was full is empty long since."""
    assert settings_of("kafka://one", {}).for_consumer()["fetch.queue.backoff.ms"] == 5
    given = settings_of("kafka://one", {"fetch.queue.backoff.ms": 50})
    assert given.for_consumer()["fetch.queue.backoff.ms"] == 50


def test_only_who_reads_change_log_waits_at_its_end():
    """A client that has fetched all asks on while rows are applied: at once, that takes the broker a core."""
    settings = settings_of("kafka://one", {})
    assert settings.for_consumer("tidegate.x.decisions")["fetch.wait.max.ms"] == 0
    assert 1 <= settings.for_consumer("tidegate.x.changelog")["fetch.wait.max.ms"] <= 20


def test_producers_are_idempotent_and_acknowledged_by_all_whatever_is_given():
    made = settings_of("kafka://one", {"retries": 3}).for_producer()
    assert made["acks"] == "all"
    assert made["enable.idempotence"] is True
    assert made["retries"] == 3


def test_a_request_ends_well_before_its_call():
    """So that a lost reply is noticed, and the request sent again, within the time-out."""
    made = settings_of("kafka://one", {"timeout_s": 30}).for_producer()
    assert 2 * made["request.timeout.ms"] <= made["delivery.timeout.ms"] == 30_000


def test_no_secret_is_shown():
    settings = settings_of("kafka://one", SECRETS)
    assert not [value for name, value in SECRETS.items() if "pass" in name and value in repr(settings)]
    text = "failed with open sesame, key secret and bearer for ann at SASL_SSL"
    assert settings.hide(text) == "failed with ***, *** and *** for ann at SASL_SSL"


@pytest.mark.parametrize(
    "given,told",
    [
        ({"sasl.username": "ann", "sasl.password": "sesame"}, "set it to SASL_SSL"),
        ({"security.protocol": "ssl", "sasl.mechanism": "PLAIN"}, "count for nothing"),
        ({"security.protocol": "SASL_SSL", "sasl.password": "sesame"}, "without a sasl.mechanism"),
    ],
)
def test_half_of_a_login_is_refused_and_not_shown(given, told):
    with pytest.raises(ConfigError, match=told) as caught:
        settings_of("kafka://one", given)
    assert "sesame" not in str(caught.value)


RUNS_CODE = (
    *("plugin.library.paths", "ssl.engine.location", "ssl.engine.id", "ssl.providers"),
    *("sasl.kerberos.kinit.cmd", "ssl.certificate.verify_cb", "open_cb", "error_cb", "log_cb"),
    *(
        "stats_cb",
        "throttle_cb",
        "on_delivery",
        "partitioner_cb",
        "default.topic.config",
        "offset.store.path",
    ),
    *("background_event_cb", "resolve_cb", "socket_cb", "connect_cb", "opaque", "key.serializer"),
    *(
        "sasl.kerberos.kinit.cmd\n",
        "PLUGIN.LIBRARY.PATHS",
        "plugin.library.paths ",
        "delivery.report.only.error",
    ),
)


@pytest.mark.parametrize("name", RUNS_CODE)
def test_no_option_loads_a_library_or_runs_a_command(name):
    with pytest.raises(ConfigError, match="unknown option"):
        settings_of("kafka://one", {name: "x"})


def test_a_callback_is_named_and_not_given():
    with pytest.raises(ConfigError, match=r"oauth_cb .*name the function in credential_provider"):
        settings_of("kafka://one", {"oauth_cb": print})


@pytest.mark.parametrize("name", IN_A_COMMAND)
@pytest.mark.parametrize("value", ["a; touch b", "$(id)", "a`id`", 'a" b', "a\nb", "a b", ""])
def test_no_value_ends_the_command_line_of_kinit(name, value):
    login = {"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI", name: value}
    with pytest.raises(ConfigError, match=r"other characters"):
        settings_of("kafka://one", login)
    assert settings_of("kafka://one", {**login, name: "etl/host.example@EXAMPLE.ORG"})
