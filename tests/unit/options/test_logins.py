"""Logins by the name of a function: what it may return, how long one is used, and what an error shows."""

import asyncio
import math
import os
import sys
import threading
import time
import traceback
import types

import pytest
import redis

from support.wait import wait_until
from tidegate.errors import ConfigError
from tidegate.options import cloud_logins
from tidegate.options.logins import NoLoginError, Provider, provider_of
from tidegate.sinks.cassandra.client.settings import settings_of as cassandra_settings
from tidegate.sinks.redis.client.settings import settings_of as redis_settings
from tidegate.wal.kafka.settings import settings_of as kafka_settings

SECRET = "t0ken-of-the-f4nction"
HOUR_S = 3600.0


@pytest.fixture
def functions(monkeypatch):
    """A module of functions; ``given(function)`` puts one there and returns its provider."""
    module = types.ModuleType("functions_of_a_test")
    monkeypatch.setitem(sys.modules, module.__name__, module)

    def given(function):
        module.login = function
        provider_of("functions_of_a_test:login", "a test").restart()
        return Provider("functions_of_a_test:login")

    return given


def raising(error):
    def function():
        raise error

    return function


def ends(in_s):
    return lambda: ("ann", SECRET, time.time() + in_s)


WRONG = [
    (lambda: None, r"returned NoneType\(\)"),
    (lambda: SECRET, r"returned str\(\)"),
    (lambda: (SECRET, HOUR_S), r"returned tuple\(str, float\)"),
    (lambda: ("ann", SECRET, "soon"), r"returned tuple\(str, str, str\)"),
    (lambda: ("ann", SECRET, True), r"returned tuple\(str, str, bool\)"),
    (lambda: ("ann", SECRET, float("nan")), r"returned tuple\(str, str, float\)"),
    (lambda: ("ann", SECRET.encode(), None), r"returned tuple\(str, bytes, NoneType\)"),
    (lambda: ("ann", SECRET + "\udce9", None), r"returned tuple\(str, str, NoneType\)"),
    (lambda: ("ann\0", SECRET, None), r"returned tuple\(str, str, NoneType\)"),
    (lambda: ("ann", SECRET, 10**400), r"returned tuple\(str, str, int\)"),
    (lambda: ("ann", SECRET, -math.inf), r"returned tuple\(str, str, float\)"),
    (lambda: ("ann", "", None), r"returned tuple\(str, '', NoneType\)"),
    (lambda: (3, SECRET, None), r"returned tuple\(int, str, NoneType\)"),
    (lambda: ["ann", None, SECRET], r"returned list\(str, NoneType, str\)"),
    (lambda: ("ann", SECRET, time.time() * 1000), "an end more than 100 years from now"),
    (raising(ModuleNotFoundError(SECRET, name="botocore")), "cannot import botocore: install it"),
]
PASSING = [
    (raising(ValueError(SECRET)), r"raised ValueError \(test_logins.py, line \d+\); call it by itself"),
    (raising(TimeoutError(SECRET)), "raised TimeoutError"),
    (raising(ConfigError(SECRET)), r"raised ConfigError \(test_logins.py, line \d+\)"),
    (raising(SystemExit(SECRET)), "raised SystemExit"),
    (ends(-30), "returned a token that ended 30 s ago"),
]


@pytest.mark.parametrize(
    "function, kind, told",
    [(function, ConfigError, told) for function, told in WRONG]
    + [(function, NoLoginError, told) for function, told in PASSING],
)
def test_an_error_names_the_function_and_shows_no_token(functions, caplog, function, kind, told):
    with pytest.raises(kind, match=told) as caught:
        functions(function).get()
    shown = "".join(traceback.format_exception(caught.value)) + caplog.text
    assert "functions_of_a_test:login" in shown
    assert SECRET not in shown


@pytest.mark.parametrize(
    "name, told",
    [
        ("functions_of_a_test:absent", "the module functions_of_a_test has no function absent"),
        ("no_such_module:login", "finds no module no_such_module: install it on each machine"),
        ("os.no_such_module:login", "finds no module os.no_such_module"),
    ],
)
def test_an_absent_function_is_an_error_when_it_is_first_needed(functions, name, told):
    functions(ends(HOUR_S))
    with pytest.raises(ConfigError, match=told):
        Provider(name).get()


def test_a_module_that_cannot_be_imported_is_an_error_of_configuration(tmp_path, monkeypatch):
    (tmp_path / "broken_login_module.py").write_text(f"token = '{SECRET}'\nraise RuntimeError(token)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match="its module cannot be imported: RuntimeError") as caught:
        Provider("broken_login_module:login").get()
    assert SECRET not in "".join(traceback.format_exception(caught.value))


SASL = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
SETTINGS = {
    "kafka": lambda **given: kafka_settings("kafka://one", SASL | given),
    "redis": lambda **given: redis_settings("redis://one", given),
    "cassandra": lambda **given: cassandra_settings("cassandra://one/space", given),
}


@pytest.mark.parametrize("server", SETTINGS)
@pytest.mark.parametrize(
    "name", [SECRET, "a:b:c", "a b:c", "a:", ":b", "../a:b", "a:b()", "a.:b", "", 7, ends]
)
def test_another_form_is_refused_and_not_shown(server, name):
    with pytest.raises(ConfigError, match="another form; it must be") as caught:
        SETTINGS[server](credential_provider=name)
    assert str(caught.value).count(SECRET) == 0


@pytest.mark.parametrize("server", SETTINGS)
def test_one_spelling_for_all_servers(server):
    settings = SETTINGS[server](credential_provider="functions_of_a_test:login")
    assert settings.provider is provider_of("functions_of_a_test:login", "a test")
    assert SETTINGS[server]().provider is None


@pytest.mark.parametrize(
    "settings, url, given, told",
    [
        (redis_settings, "redis://ann:x@one", {}, "it has a login and a credential_provider"),
        (redis_settings, "redis://one", {"password": "x"}, "it has a login and a credential_provider"),
        (cassandra_settings, "cassandra://ann:x@one/s", {}, "it has a login and a credential_provider"),
        (cassandra_settings, "cassandra://one/s", {"username": "x"}, "a login and a credential_provider"),
        (kafka_settings, "kafka://one", {}, "no login that takes it"),
        (kafka_settings, "kafka://one", SASL | {"sasl.mechanism": "GSSAPI"}, "no login that takes it"),
        (kafka_settings, "kafka://one", SASL | {"sasl.password": "x"}, "both .* and sasl.password"),
        (kafka_settings, "kafka://one", SASL | {"sasl.oauthbearer.method": "oidc"}, "both .* and sasl.oauth"),
    ],
)
def test_a_second_login_is_refused(settings, url, given, told):
    with pytest.raises(ConfigError, match=told):
        settings(url, given | {"credential_provider": "functions_of_a_test:login"})


def test_a_login_is_used_until_a_fifth_of_its_time_is_left(functions):
    calls = []

    def login():
        calls.append(1)
        return "ann", SECRET, time.time() + 1.0

    provider = functions(login)
    assert [provider.get() for _ in range(5)].count(provider.get()) == 5
    wait_until(lambda: provider.get() and len(calls) == 2, "the next one")


def test_without_an_end_the_function_is_called_for_each_connection(functions):
    numbers = iter(range(9))
    provider = functions(lambda: ("", f"{next(numbers)}", None))
    assert [provider.get().token for _ in range(3)] == ["0", "1", "2"]


def test_a_refused_login_is_asked_for_again_unless_it_is_new(functions, monkeypatch):
    tokens = iter(["old", "new"])
    provider = functions(lambda: ("", next(tokens), time.time() + HOUR_S))
    assert provider.get().token == "old"
    monkeypatch.setattr("tidegate.options.logins.JUST_S", -1.0)
    assert provider.forget()
    assert provider.get().token == "new"
    monkeypatch.undo()
    assert not provider.forget()


def test_a_function_that_hangs_has_a_deadline_and_its_late_answer_counts(functions):
    go_on = threading.Event()

    def login():
        go_on.wait(60)
        return "ann", SECRET, time.time() + HOUR_S

    provider = functions(login)
    for _ in range(2):
        with pytest.raises(NoLoginError, match=r"has not returned for .* s; give its requests a time limit"):
            provider.get(0.05)
    go_on.set()
    assert provider.get().token == SECRET


def test_a_function_that_never_returns_is_called_again_in_few_threads(functions, monkeypatch):
    monkeypatch.setattr("tidegate.options.logins.HANGS_S", 0.0)
    end, calls = threading.Event(), []
    provider = functions(lambda: calls.append(1) or end.wait(60))
    for _ in range(20):
        with pytest.raises(NoLoginError):
            provider.get(0.01)
    assert len(calls) == 5
    end.set()


@pytest.mark.parametrize("second", [raising(ValueError("down")), lambda: threading.Event().wait(60)])
def test_a_login_that_is_left_is_used_while_the_function_fails(functions, monkeypatch, caplog, second):
    monkeypatch.setattr("tidegate.options.logins.USED_SHARE", 0.0)
    answers = iter([ends(HOUR_S), second])
    provider = functions(lambda: next(answers)())  # noqa: PLW0108 - a second answer each time
    first = provider.get()
    assert [provider.get() for _ in range(50)] == [first] * 50
    assert caplog.text.count("the present login is used further") == 1


def test_many_threads_share_one_call(functions):
    calls, go_on = [], threading.Event()

    def login():
        calls.append(1)
        go_on.wait(60)
        return "ann", SECRET, time.time() + HOUR_S

    provider, found = functions(login), []
    threads = [threading.Thread(target=lambda: found.append(provider.get(60))) for _ in range(20)]
    for thread in threads:
        thread.start()
    go_on.set()
    for thread in threads:
        thread.join()
    assert (len(found), len(calls)) == (20, 1)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_of_a_fork_asks_for_its_own_login(functions):
    asking, end, parent = threading.Event(), threading.Event(), os.getpid()

    def login():
        if os.getpid() == parent:  # the thread of this call does not exist in the child
            asking.set()
            end.wait(60)
        return "ann", SECRET, None

    functions(login)
    provider = provider_of("functions_of_a_test:login", "a test")
    with pytest.raises(NoLoginError):
        provider.get(0.01)
    assert asking.wait(60)
    child = os.fork()
    if not child:
        os._exit(provider.get().token != SECRET)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    end.set()


def test_redis_py_gets_it_in_its_own_form(functions):
    functions(lambda: ("", SECRET, None))
    login = redis_settings("redis://one", {"credential_provider": "functions_of_a_test:login"}).connection[
        "credential_provider"
    ]
    assert login.get_credentials() == (SECRET,)
    functions(ends(HOUR_S))
    assert asyncio.run(login.get_credentials_async()) == ("ann", SECRET)
    functions(raising(ValueError(SECRET)))
    with pytest.raises(redis.ConnectionError, match="raised ValueError"):
        login.get_credentials()


# -- managed servers, with modules in the place of the vendors' libraries ---------------------------


def module(monkeypatch, name, **content):
    made = types.ModuleType(name)
    vars(made).update(content)
    monkeypatch.setitem(sys.modules, name, made)


def test_msk_by_iam(monkeypatch):
    class MSKAuthTokenProvider:
        @staticmethod
        def generate_auth_token(region):
            return f"signed for {region}", 1_900_000_000_000

    module(monkeypatch, "aws_msk_iam_sasl_signer", MSKAuthTokenProvider=MSKAuthTokenProvider)
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    assert cloud_logins.msk_iam() == ("", "signed for eu-west-1", 1_900_000_000.0)
    assert cloud_logins.msk_iam("us-east-1")[1] == "signed for us-east-1"
    assert Provider("tidegate.options.cloud_logins:msk_iam").get().token == "signed for eu-west-1"


@pytest.mark.parametrize("serverless", [False, True])
def test_elasticache_by_iam(monkeypatch, serverless):
    class Signer:
        def __init__(self, credentials, service, region, expires):
            self.text = f"&X-Amz-Credential={credentials}&s={service}&r={region}&X-Amz-Expires={expires}"

        def add_auth(self, request):
            request.url += self.text

    frozen = types.SimpleNamespace(get_frozen_credentials=lambda: "KEY")
    session = types.SimpleNamespace(get_credentials=lambda: frozen)
    module(monkeypatch, "botocore")
    module(monkeypatch, "botocore.auth", SigV4QueryAuth=Signer)
    module(monkeypatch, "botocore.awsrequest", AWSRequest=types.SimpleNamespace)
    module(monkeypatch, "botocore.session", Session=lambda: session)
    user, token, expires_at = cloud_logins.elasticache_iam(
        "ann", "my-cache", "eu-west-1", serverless=serverless
    )
    kind = "&ResourceType=ServerlessCache" if serverless else ""
    assert token == (
        f"my-cache/?Action=connect&User=ann{kind}&X-Amz-Credential=KEY&s=elasticache&r=eu-west-1"
        "&X-Amz-Expires=900"
    )
    assert user == "ann"
    assert 890 < expires_at - time.time() <= 900
    frozen_none = types.SimpleNamespace(get_credentials=lambda: None)
    module(monkeypatch, "botocore.session", Session=lambda: frozen_none)
    with pytest.raises(ConfigError, match="finds no credentials of AWS"):
        cloud_logins.elasticache_iam("ann", "my-cache", "eu-west-1")


def test_azure_by_entra_id(monkeypatch):
    made = []

    class DefaultAzureCredential:
        def __init__(self):
            made.append(1)

        def get_token(self, scope):
            return types.SimpleNamespace(token=f"for {scope}", expires_on=1_900_000_000)

    cloud_logins._azure.cache_clear()
    module(monkeypatch, "azure")
    module(monkeypatch, "azure.identity", DefaultAzureCredential=DefaultAzureCredential)
    scope = "https://redis.azure.com/.default"
    assert cloud_logins.entra("oid") == ("oid", f"for {scope}", 1_900_000_000.0)
    assert cloud_logins.entra("oid", "another")[1] == "for another"
    assert made == [1]
    cloud_logins._azure.cache_clear()


def test_astra():
    assert cloud_logins.astra("AstraCS:x") == ("token", "AstraCS:x", None)


@pytest.mark.parametrize(
    "name, told",
    [
        ("msk_iam", "cannot import aws_msk_iam_sasl_signer: install it"),
        ("entra", "cannot import azure.*: install it"),
    ],
)
def test_a_library_that_is_not_installed_is_named(monkeypatch, name, told):
    for absent in ("aws_msk_iam_sasl_signer", "azure", "azure.identity"):
        monkeypatch.setitem(sys.modules, absent, None)
    cloud_logins._azure.cache_clear()
    with pytest.raises(ConfigError, match=told):
        Provider(f"tidegate.options.cloud_logins:{name}").get()


def test_the_region_is_asked_for(monkeypatch):
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    module(monkeypatch, "aws_msk_iam_sasl_signer")
    with pytest.raises(ConfigError, match=r"cloud_logins:msk_iam .*give it, or set AWS_REGION"):
        Provider("tidegate.options.cloud_logins:msk_iam").get()
