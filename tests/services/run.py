"""Start servers, run one command that needs them, end them; the exit code is the command's.

    tools/run python tests/services/run.py kafka -- tidegate doctor --wal {kafka}

``kafka`` is one broker, ``kafka3`` three. ``{kafka}`` in the command becomes kafka://host:port (or several,
with commas). Ctrl-C and SIGTERM end the command first, then the servers.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # tools/run keeps it off

from kafka_server import KafkaCluster

BROKERS = {"kafka": 1, "kafka3": 3}
END_S = 20.0


def run(command: list[str]) -> int:
    """Run it to its end. When we are told to end, so is it: SIGTERM, and SIGKILL if that is not heeded."""
    child = subprocess.Popen(command)
    try:
        return child.wait()
    finally:
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            child.wait(END_S)
        child.kill()


def main(arguments: list[str]) -> int:
    if len(arguments) < 3 or arguments[0] not in BROKERS or arguments[1] != "--":
        print(__doc__, file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    with (
        tempfile.TemporaryDirectory(prefix="tidegate-") as folder,
        KafkaCluster(Path(folder, "kafka"), BROKERS[arguments[0]]) as kafka,
    ):
        code = run([word.replace("{kafka}", f"kafka://{kafka.bootstrap}") for word in arguments[2:]])
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
