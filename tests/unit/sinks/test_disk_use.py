"""Log and store of a stream over the same keys do not grow with its history (I11): the benchmark in small."""

import importlib.util
from pathlib import Path

from tidegate.options import Options

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "bench_disk_flat.py"


def test_disk_use_is_bounded(tmp_path, monkeypatch):
    # One process that waits for nothing: no file is so young that its time may be wrong.
    monkeypatch.setattr("tidegate.wal.file.log.MTIME_US", 0)
    # What levels off only after 1,000 versions, or 16 MB per file, does so earlier here.
    monkeypatch.setattr("tidegate.wal.fold.RECENT_MAX", 30)
    monkeypatch.setattr("tidegate.sinks.sqlite.disk.files.AUTOCHECKPOINT_PAGES", 50)
    spec = importlib.util.spec_from_file_location("bench_disk_flat", SCRIPT)
    bench = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench)
    options = Options(
        key_groups=4, keep_versions=5, summary_every=10, wal_retain_s=0.001, apply_deadline_s=0.0001
    )
    samples = bench.run(tmp_path, 300, options, keys=200, sampled=lambda _: None)
    assert len(samples) == 300
    for part in ("decisions", "changelog", "store", "store_wal", "total"):
        assert bench.growth(samples, part) < 1.2, (part, samples[::20])
