"""What Kafka's client says of itself goes to the logger ``tidegate.kafka``, and nowhere else."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[4]

AWAY = """
import logging, sys
from tidegate.errors import WalUnavailableError
from tidegate.wal.open_log import open_log

kept = []
class Keeping(logging.Handler):
    def emit(self, record):
        kept.append(record.name)
if "listening" in sys.argv:
    logging.getLogger("tidegate.kafka").addHandler(Keeping())
log = open_log("kafka://127.0.0.1:1", "n", {"timeout_s": 1})
for call in (lambda: list(log.decisions()), lambda: log.append_decision(b"x"), log.create):
    try:
        call()
    except WalUnavailableError:
        pass
log.close()
print(len(kept))
"""


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-c", AWAY, *arguments], capture_output=True, text=True, timeout=60, check=True
    )


def test_nothing_reaches_standard_error_when_nobody_listens():
    assert run().stderr == ""


def test_who_listens_hears_it():
    done = run("listening")
    assert (done.stderr, int(done.stdout) > 0) == ("", True)


def test_clients_are_made_in_one_place_with_the_logger():
    made = re.compile(r"\b(Producer|Consumer|AdminClient)\(")
    found = [path.name for path in ROOT.glob("wal/**/*.py") if made.search(path.read_text())]
    assert found == []
    assert "logger=logger)" in (ROOT / "wal" / "kafka" / "clients.py").read_text()
