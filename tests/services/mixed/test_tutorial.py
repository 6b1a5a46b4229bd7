"""docs/tutorial.md, word by word: every command that it shows, in an empty folder, with its output."""

import os
import re
import shutil
import subprocess

import pytest

from services.support.servers import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
COMMAND_S = 300
PAGE = ROOT / "docs" / "tutorial.md"
CHANGES = [  # what differs from run to run
    (r"20[2-9]\d-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|\+00:00)?)?|\b\d\d:\d\d:\d\d(\.\d+)?Z", "TIME"),
    (r"\b\d+(\.\d+)? (s|ms|min|h|B|KiB|MiB|GiB)\b", "AMOUNT"),
    (r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|\b[0-9a-f]{16,}\b", "ID"),
    (r"\b(127\.0\.0\.1|localhost):\d+", "SERVER"),
    (r"\b[\w.-]+:\d+:TIME", "PROCESS"),
    (r"\x1b\[[0-9;?]*[A-Za-z]|[┏┳┓┡╇┩│┃└┴┘━─]", " "),
]


def masked(text):
    """The text without what differs from run to run, each run of blanks and line ends as one blank."""
    for pattern, name in CHANGES:
        text = re.sub(pattern, name, text)
    return " ".join(text.split())


def matches(shown, printed):
    """Whether the page shows what was printed; a line ``...`` is any number of lines."""
    parts = re.split(r"^\.\.\.$", shown, flags=re.MULTILINE)
    return (
        re.fullmatch(".*?".join(f" *{re.escape(masked(part))} *" for part in parts), masked(printed))
        is not None
    )


def commands():
    """The commands of the page, each with the output that the page shows below it."""
    for block in re.findall(r"^```console\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, _, shown = part.partition("\n")
            yield line, shown


@pytest.fixture
def run(private_kafka, private_redis, tmp_path):
    """Runs one line of the tutorial as a user's terminal would; gives what it printed."""
    shutil.copy(ROOT / "examples" / "tutorial" / "departures.py", tmp_path)
    kafka, redis = private_kafka(), private_redis()  # the namespace has the name that the page shows
    terminal = {"COLUMNS": "100", "NO_COLOR": "1", "TIDEGATE_NAMESPACE": "flights"}
    settings = {"TIDEGATE_WAL": kafka.url, "TIDEGATE_STORE": redis.url, **terminal}

    def line(text):
        done = subprocess.run(
            ["script", "-qec", text, "/dev/null"],
            cwd=tmp_path,
            env=os.environ | settings,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
        assert done.returncode == 0, f"$ {text}\n{done.stdout}{done.stderr}"
        return done.stdout

    return line


def test_every_command_of_the_tutorial_prints_what_it_says(run):
    wrong = []
    for line, shown in commands():
        printed = run(line)
        if not matches(shown, printed):
            wrong.append(f"$ {line}\n{printed}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "shown, printed, same",
    [
        ("version 5\n", "version 5\r\n", True),
        ("version 5\n", "version 6\n", False),
        ("its age 4 s\n", "its age  109 s\n", True),
        ("first\n...\nlast\n", "first\na\nb\nlast\n", True),
        ("first\n...\n", "second\n", False),
    ],
)
def test_a_wrong_line_is_found(shown, printed, same):
    assert matches(shown, printed) == same
