"""Servers on hosts of their own: each fault of the plan cuts what it says, and its end heals it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from services.support.hosts import why_not

CHECK = """
import shlex, subprocess, sys, redis
from pathlib import Path
from tidegate.torture.cell.cluster import read_plan

url, plan = sys.argv[1:]

def answers():
    with redis.Redis.from_url(url, socket_timeout=1, socket_connect_timeout=1) as client:
        try:
            return client.ping()
        except redis.RedisError:
            return False

for fault in read_plan(Path(plan), (), 60):
    subprocess.run(shlex.split(fault.end), check=True)
    before = answers()
    subprocess.run(shlex.split(fault.begin), check=True)
    during = answers()
    subprocess.run(shlex.split(fault.end), check=True)
    print(fault.name, before, during, answers())
"""


@pytest.mark.timeout(120)
def test_a_fault_of_the_plan_cuts_hosts_and_is_healed() -> None:
    if why := why_not():
        pytest.skip(why)
    ran = subprocess.run(
        [
            sys.executable,
            Path(__file__).with_name("on_hosts.py"),
            "redis",
            "--",
            sys.executable,
            "-c",
            CHECK,
            "{redis}",
            "{plan}",
        ],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    faults = "redis-0-off", "driver-to-redis", "redis-to-driver", "redis-0-paused"
    assert ran.stdout.splitlines() == [f"{fault} True False True" for fault in faults]
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, timeout=20, check=True)
    assert "tidegate" not in left.stdout
