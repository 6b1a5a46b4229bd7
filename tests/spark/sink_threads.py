"""The threads that sinks have, by name."""

import threading

OF_THE_PROCESS = {"tidegate-alarm"}
"""It looks at all commits on their way, and ends by itself when there have long been none."""


def sink_threads() -> list[str]:
    """Those that end with a sink, or with its query."""
    names = [thread.name for thread in threading.enumerate() if thread.name.startswith("tidegate-")]
    return sorted(name for name in names if name not in OF_THE_PROCESS)
