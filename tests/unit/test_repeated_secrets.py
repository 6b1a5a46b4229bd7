"""A server that repeats a login in words of its own: no error of a Redis client shows the password."""

from __future__ import annotations

import asyncio
import socketserver
import threading
import traceback
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tidegate
import tidegate.aio
from tidegate.base.urls import CUT_MIN, _cut_at, hide_forms
from tidegate.errors import TidegateError

PASSWORDS = ["s3cr3t-" + "q" * 200, "s3c'r3t-\"x", "s3crät-ß∂", "s3c\\r3t\\zz", "s3cr3t%zz%41"]
ANSWERS = {
    "as they are": lambda words: b"ERR wrong: " + b" ".join(words),
    "as a refusal": lambda words: b"WRONGPASS no such user: " + b" ".join(words),
    "as Python shows them": lambda words: b"ERR wrong: " + repr(words).encode(),
    "cut": lambda words: (b"ERR wrong: '" + b" ".join(words))[:60] + b"'",
}


class Repeating(socketserver.StreamRequestHandler):
    """Answers each command with an error that repeats its words."""

    def handle(self) -> None:
        while head := self.rfile.readline():
            words = []
            for _ in range(int(head[1:])):
                words.append(self.rfile.read(int(self.rfile.readline()[1:])))
                self.rfile.read(2)
            self.wfile.write(b"-" + self.server.answer(words) + b"\r\n")


@pytest.fixture(params=ANSWERS)
def server(request):
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Repeating) as made:
        made.daemon_threads, made.answer = True, ANSWERS[request.param]
        thread = threading.Thread(target=made.serve_forever, args=(0.01,))
        thread.start()
        yield f"127.0.0.1:{made.server_address[1]}"
        made.shutdown()
        thread.join()


def forms(password):
    """What would show it: itself, escaped, or its first twelve characters."""
    escaped = ascii(password)[1:-1], repr(password.encode())[2:-1], quote(password, safe="")
    return [password, *escaped, *(form[:12] for form in (password, *escaped))]


@pytest.mark.parametrize("password", PASSWORDS, ids=range(len(PASSWORDS)))
@pytest.mark.parametrize("kind", ["redis://{}@{}", "redis+cluster://{}@{}", "redis+sentinel://{}@{}/m"])
def test_a_server_that_repeats_a_login_in_words_of_its_own_t48(server, kind, password, caplog):
    caplog.set_level(0)
    url = kind.format(f"us:{quote(password, safe='')}", server)
    options = {"timeout_s": 0.3} | ({"sentinel_password": password} if "sentinel" in kind else {})

    async def look():
        async with await tidegate.aio.connect(url, "flights", options) as gate:
            await gate.version()

    told = []
    for ask in (lambda: tidegate.connect(url, "flights", options), lambda: asyncio.run(look())):
        with pytest.raises(TidegateError) as caught:
            ask()
        told.append("".join(traceback.format_exception(caught.value)))
    for text in (*told, caplog.text):
        assert not [form for form in forms(password) if form in text], text


@given(st.text("ab'", max_size=30), st.text("ab'", min_size=1, max_size=12))
def test_the_longest_beginning_of_a_secret_at_the_end_is_found(text, secret):
    longest = max((at for at in range(CUT_MIN, len(secret)) if text.endswith(secret[:at])), default=0)
    assert _cut_at(text, secret) == (len(text) - longest if longest else -1)


def test_a_long_secret_is_compared_with_the_text_alone():
    """Each of its 600,000 beginnings was copied: minutes."""
    password = "".join(f"{number:06}" for number in range(100_000))
    assert hide_forms(f"no login {password[:50]}", [password]) == "no login ***"


def test_what_only_begins_like_a_secret_is_shown():
    said = "WRONGPASS invalid username-password pair or user is disabled."
    assert hide_forms(said, ["password-of-mine"]) == said
    assert hide_forms("refused: 'pass", ["password-of-mine"]) == "refused: ***"
