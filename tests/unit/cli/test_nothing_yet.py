"""What commands say where there is nothing yet, or nobody answers: never of a version 0, nothing twice."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from tidegate.cli import app
from tidegate.cli.core.app import _next_step
from tidegate.cli.inspect.doctor_servers import _failed
from tidegate.errors import StoreUnavailableError, WalUnavailableError
from tidegate.sinks.redis.client.replies import no_answer


@pytest.fixture
def made(tmp_path):
    """A namespace without a version: its options."""
    options = [f"--store=sqlite://{tmp_path}/store", f"--wal=file://{tmp_path}/wal", "--namespace=new"]
    assert CliRunner().invoke(app, ["init", *options]).exit_code == 0
    return options


def test_recover_of_a_namespace_without_a_version(made):
    result = CliRunner().invoke(app, ["recover", *made])
    assert (result.exit_code, result.stdout) == (0, "nothing to recover: no version was decided yet\n")


def test_restore_of_a_namespace_without_a_version(made):
    result = CliRunner().invoke(app, ["restore", "--to", "1", "--yes", *made])
    assert result.exit_code == 2
    assert "has no visible version yet, so there is none to restore" in result.stderr


def test_a_clients_sentence_does_not_end_in_the_middle_of_ours():
    error = no_answer("store redis://h, namespace n", 10.0, ConnectionError("Connection refused."))
    assert ": no answer within 10.0 s: Connection refused; nothing that is " in str(error)


def test_doctor_names_a_url_once():
    error = StoreUnavailableError("store redis://h:1, namespace n: no answer within 10.0 s")
    assert _failed("store: reachable", "redis://h:1", error, "").found == str(error)


@pytest.mark.parametrize(
    "error",
    [
        no_answer("store redis://h, namespace n", 10.0, ConnectionError("Connection refused")),
        WalUnavailableError("kafka://h:1: no metadata; look whether the brokers run and can be reached"),
        StoreUnavailableError("redis://h:1: no answer within 2 s"),
    ],
    ids=["with both", "with a sentence", "with none"],
)
def test_a_server_that_is_away_is_advised_once(error):
    text = f"{error}{_next_step(error)}"
    assert text.lower().count("look whether") == text.count("`tidegate doctor`") == 1
