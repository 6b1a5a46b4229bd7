"""The page on the format in Redis: its example is run line by line, and its lists are whole."""

import re
import shlex
import shutil
import subprocess

import pytest

from services.support.servers import ROOT
from tidegate.sinks.redis.client.functions import FORMAT, LIBRARY, library_name, readers, source
from tidegate.testing.example import write_flights

PAGE = (ROOT / "docs" / "storage-format.md").read_text().partition(f"## Redis, format {FORMAT}\n")[2]
STEPS = (ROOT / "docs" / "write-a-reader.md").read_text()
BLOCK = re.search(r"^```redis-cli\n(.*?)^```", STEPS, re.MULTILINE | re.DOTALL)[1]


def steps():
    """Each command with the lines that it shows."""
    for part in re.split(r"^\$ ", BLOCK, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        yield command, shown


def said_by(server, arguments):
    """What redis-cli prints into a pipe, or, where there is none, what it would."""
    program = shutil.which("redis-cli")
    if program is not None:
        command = [program, "-p", str(server.port), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False).stdout
    with server.client() as client:
        client.response_callbacks.clear()
        try:
            return "".join(f"{line}\n" for line in flat(client.execute_command(*arguments)))
        except Exception as refusal:  # noqa: BLE001 - shown, and compared
            return f"{refusal}\n\n"


def flat(reply):
    if not isinstance(reply, list):
        return ["" if reply is None else str(reply)]
    return [line for each in reply for line in flat(each)]


def pattern_of(shown, known):
    """``...`` is anything: of a line of its own, any lines."""
    for name, value in known.items():
        shown = shown.replace(f"${name}", value)
    escaped = re.escape(shown)
    escaped = re.sub(r"(?m)^\\\.\\\.\\\.\\\n", r"(?:.*\\n)+?", escaped)
    return re.compile(escaped.replace(r"\.\.\.", ".*"))


def test_the_example_line_by_line(private_redis, tmp_path):
    server = private_redis()
    write_flights(f"file://{tmp_path}/wal", server.url, alias="live")
    known = {
        "UUID": server.ask("HGET", "tg:{flights}:meta", "uuid"),
        "LIBRARY": library_name(),
        "SERVER": server.info("replication")["master_replid"],
    }
    ran = 0
    for command, shown in steps():
        program, *arguments = shlex.split(command)
        assert program == "redis-cli"
        arguments = [re.sub(r"\$\{?(\w+)\}?", lambda name: known[name[1]], one) for one in arguments]
        said = said_by(server, arguments).replace("\r\n", "\n")
        assert pattern_of(shown, known).fullmatch(said), f"{command}\nsaid:\n{said}\nshown:\n{shown}"
        ran += 1
    assert ran == BLOCK.count("$ redis-cli") >= 15


def test_every_key_of_a_namespace_stands_there(private_redis, tmp_path):
    server = private_redis()
    write_flights(f"file://{tmp_path}/wal", server.url)
    kinds = {
        re.sub(r":\d+:\w+$", ":<v>:<uuid>", re.sub(r"/\d+", "/<kg>", key).replace("flights", "<ns>"))
        for key in server.ask("KEYS", "*")
    }
    kinds = {re.sub(r"(?<=}:)\w+(?=:d:)", "<table>", key) for key in kinds}
    assert kinds
    missing = {key for key in kinds if f"| `{key}` |" not in PAGE}
    assert not missing


@pytest.mark.parametrize("code", sorted(set(re.findall(r"refuse\('(TG\w+)'", source()))))
def test_every_refusal_stands_there(code):
    assert f"| `{code}` |" in PAGE


def test_the_functions_there_are_readers():
    rows = re.findall(r"^\| `(\w+)` \| (?:`meta`|header|none) \|", PAGE, re.MULTILINE)
    assert len(rows) == 9
    assert set(rows) - readers() == {"lease", "release"}
    assert f"`{LIBRARY}_<digest>`" in PAGE
