"""doctor warns of a login that may go to another server."""

import pytest

from tidegate.cli.inspect.doctor_logins import check_private

SASL = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.password": "hunter2"}


@pytest.mark.parametrize(
    "url,options",
    [
        ("redis://u:hunter2@cache:6379", {}),
        ("redis+cluster://a,b", {"password": "hunter2"}),
        ("cassandra://u:hunter2@127.0.0.1,b/k", {}),
        ("cassandra://u:hunter2@b/k", {"tls": True, "ssl_check_hostname": False}),
        ("kafka://broker:9092", SASL | {"security.protocol": "SASL_PLAINTEXT"}),
        ("kafka://broker:9092", SASL | {"ssl.endpoint.identification.algorithm": "none"}),
        ("kafka://broker:9092", SASL | {"enable.ssl.certificate.verification": "false"}),
    ],
)
def test_a_login_that_others_may_get_is_a_warning(url, options):
    (check,) = check_private("x", url, options)
    assert check.outcome == "warn"
    assert "hunter2" not in check.found


@pytest.mark.parametrize(
    "url,options",
    [
        ("redis://u:p@127.0.0.1:6379", {}),
        ("redis://u:p@[::1]:6379", {}),
        ("redis://cache", {}),
        ("rediss://u:p@cache", {}),
        ("cassandra://u:p@b/k", {"tls": True}),
        ("cassandra://u:p@b/k", {"ssl_ca_certs": "f"}),
        ("kafka://broker:9092", SASL),
        ("kafka://broker:9092", {}),
        ("sqlite:///data", {}),
        ("memory://x", {}),
    ],
)
def test_a_login_to_one_server_alone_is_none(url, options):
    assert check_private("x", url, options) == []
