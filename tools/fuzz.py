"""Fuzzing guided by coverage (Atheris): stored bytes of a log or a store, and texts that users enter.

    python tools/fuzz.py [--seconds 60] [--only frames,records]     (`make fuzz`)

Each target gets ``--seconds`` of one processor, 1 GiB of memory, and 10 s for an input. A target either
returns a value or raises an error of tidegate's own; anything else ends it, and the input is in
build/fuzz. Hypothesis does the same in every run of the tests (``tests/unit/test_fuzz.py``), but does not
know the code that an input reached. Atheris is installed into an environment of its own, .venv-fuzz.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FOUND = ROOT / "build" / "fuzz"
ENVIRONMENT = ROOT / ".venv-fuzz"
QUIET = ("-q", "--disable-pip-version-check")
GENESIS: dict[str, Any] = {
    "namespace": "u",
    "writer": "w",
    "epoch": 0,
    "prev_digest": "",
    "key_groups": 8,
    "name": "n",
    "created_at_us": 1,
}
LIMITS = (
    "-rss_limit_mb=1024",
    "-malloc_limit_mb=512",
    "-timeout=10",
    "-max_len=4096",
    "-print_final_stats=1",
)


def records(data: bytes) -> None:
    """Records of the decision log, with any checksum and with one that fits."""
    from tidegate.wal import record

    right = record.encode_record(record.Genesis(**GENESIS))
    magic = right[: right.index(b"{") - record.CHECKSUM_BYTES]
    _typed(lambda: record.decode_record(data, "here"))
    _typed(lambda: record.decode_record(magic + record.checksum(data) + data, "here"))


def manifests(data: bytes) -> None:
    """Manifests whose checksum and digest fit."""
    from tidegate.wal import manifest, record

    content = manifest.MANIFEST_MAGIC + record.checksum(data) + data
    _typed(lambda: manifest.decode_manifest(content, manifest.manifest_digest(content), "here"))


def frames(data: bytes) -> None:
    """Frames whose checksum fits, whatever their header and their rows."""
    from tidegate.wal import frame, record

    content = frame.MAGIC + record.checksum(data) + data
    stamp = content[len(frame.MAGIC) : frame.HEADER_AT].hex()
    ref = record.FrameRef("a", len(content), stamp, (0,), (0,), (1,))
    _typed(lambda: frame.decode_frame(content, ref, "a", "here"))


def values(data: bytes) -> None:
    """Stored values, and keys of every kind."""
    import pyarrow as pa

    from tidegate.keys.groups import decode_key
    from tidegate.sinks.rules.layout import payload, payloads

    _typed(lambda: payload(data, 1))
    _typed(lambda: payloads(pa.array([data], pa.binary()), 1))
    for types in (
        ["string"],
        ["int"],
        ["date"],
        ["timestamp"],
        ["string", "bigint"],
        ["timestamp_ntz", "int"],
        ["binary", "boolean", "decimal(10,2)"],
    ):
        _typed(lambda types=types: decode_key(data, types))  # type: ignore[misc]


def texts(data: bytes) -> None:
    """URLs and addresses."""
    from tidegate.base.urls import redact
    from tidegate.options.endpoints import Endpoints, parse_store
    from tidegate.wal.file.format import parse_address, parse_decisions_header
    from tidegate.wal.kafka.address import parse_address as parse_kafka_address

    text = data.decode("utf-8", "surrogateescape")
    for call in (parse_address, parse_kafka_address):
        _typed(lambda call=call: call(text, "here"))  # type: ignore[misc]
    _typed(lambda: parse_decisions_header(data, "here"))
    _typed(lambda: parse_store(text))
    _typed(lambda: Endpoints.of("n", text, [text]))
    redact(text)


TARGETS: dict[str, Callable[[bytes], None]] = {
    "records": records,
    "manifests": manifests,
    "frames": frames,
    "values": values,
    "texts": texts,
}


def seeds(name: str) -> list[bytes]:
    """Right inputs to begin with: what no chance makes."""
    import pyarrow as pa

    from tidegate.wal import frame, manifest, record

    whole = record.encode_record(record.Genesis(**GENESIS))
    rows = pa.array([b"k"], pa.binary()), pa.array([b"+v"], pa.binary())
    framed = frame.encode_frame(frame.FrameHeader("n", "a", ("t",), (0,), (0,), (1,)), *rows)
    ref = record.FrameRef("at", len(framed), "00" * 8, (0,), (0,), (1,))
    component = manifest.Component(1, {"0": (ref,)})
    schema = record.TableSchema((record.Column("k", "string"),), (record.Column("v", "int"),))
    told = manifest.encode_manifest(
        manifest.Manifest(
            namespace="u",
            attempt="a",
            version=1,
            key_groups=8,
            tables=("t",),
            schemas={schema.schema_id: schema},
            table_schemas={"t": record.TableAt(schema.schema_id, 0)},
            topology={"query": {"sink": component}},
            source_offsets="",
        )
    )
    found = {
        "records": [whole[whole.index(b"{") :]],
        "manifests": [told[len(manifest.MANIFEST_MAGIC) + record.CHECKSUM_BYTES :]],
        "frames": [framed[frame.HEADER_AT :]],
        "values": [b"+{}", b"-", b"e" + bytes(8) + b"{}", b"1:a,2:bb,"],
        "texts": [b"redis://u:p@host:1,host:2/0", b"file:///tmp/w", b"kafka://[::1]:9092"],
    }
    return found[name]


def _typed(call: Callable[[], object]) -> None:
    from tidegate.errors import TidegateError

    with contextlib.suppress(TidegateError):
        call()


def run_here(name: str, seconds: int) -> None:
    """Fuzz one target in this process, which ends with it."""
    import atheris  # type: ignore[import-not-found]

    with atheris.instrument_imports(include=["tidegate", "msgspec"]):
        TARGETS[name](b"")
    folder = FOUND / name
    corpus = folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, content in enumerate(seeds(name)):
        (corpus / f"seed-{number}").write_bytes(content)
    limits = [*LIMITS, f"-max_total_time={seconds}", f"-artifact_prefix={folder}/", str(corpus)]
    atheris.Setup([sys.argv[0], *limits], TARGETS[name])
    atheris.Fuzz()


def environment() -> str:
    """Return the Python that has Atheris, and this working copy of tidegate."""
    python = ENVIRONMENT / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(ENVIRONMENT)], check=True)
    pip = [str(python), "-m", "pip", "install", *QUIET]
    subprocess.run([*pip, "atheris>=3", "-e", f"{ROOT}[kafka]"], check=True)
    return str(python)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--only", default=",".join(TARGETS), metavar="NAMES", help="these, with commas")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    names = arguments.only.split(",")
    if unknown := sorted(set(names) - TARGETS.keys()):
        parser.error(f"no such target: {', '.join(unknown)}; there are {', '.join(TARGETS)}")
    if arguments.here:
        run_here(names[0], arguments.seconds)
    python, failed = environment(), []
    for name in names:
        print(f"{name}: {arguments.seconds} s", flush=True)
        asked = [python, __file__, "--here", "--only", name, "--seconds", str(arguments.seconds)]
        done = subprocess.run(asked, cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False)
        told = [
            line for line in done.stderr.splitlines() if "number_of_executed_units" in line or "cov:" in line
        ]
        print("\n".join(["  " + line for line in told[-2:]]), flush=True)
        if done.returncode:
            failed.append(name)
            print(done.stderr[-4000:], flush=True)
    if failed:
        print(f"an input was found in: {', '.join(failed)}; it is in {FOUND}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
