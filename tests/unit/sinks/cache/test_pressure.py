"""The signals of memory pressure from the kernel's files: both versions of control groups, or none."""

import resource
from types import SimpleNamespace

import pytest

from tidegate.sinks.cache.buffer.policy import ContainerMemory
from tidegate.sinks.cache.buffer.pressure import WaitMeter, container_memory

MIB = 1 << 20
NO_LIMIT_1 = 9223372036854771712
"""The limit that version 1 shows where none is set."""


class Kernel:
    """The files of a kernel, as far as they are read."""

    def __init__(self, folder):
        self.proc, self.cgroups, self.now = folder / "proc", folder / "cgroup", 0.0

    def write(self, path, content):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)

    def in_groups(self, *lines):
        self.write(self.proc / "self/cgroup", "".join(f"{line}\n" for line in lines))

    def version_2(self, name, used, most="max", high="max", files=0, stalled_us=None):
        folder = self.cgroups / name
        for file, content in (("memory.current", used), ("memory.max", most), ("memory.high", high)):
            self.write(folder / file, f"{content}\n")
        self.write(folder / "memory.stat", f"anon 5\nfile 9\ninactive_file {files}\nactive_file {files}\n")
        if stalled_us is not None:
            self.stalls(folder / "memory.pressure", stalled_us)

    def version_1(self, name, used, limit, files=0):
        folder = self.cgroups / "memory" / name
        self.write(folder / "memory.usage_in_bytes", f"{used}\n")
        self.write(folder / "memory.limit_in_bytes", f"{limit}\n")
        stat = f"inactive_file 1\nactive_file 1\ntotal_inactive_file {files}\ntotal_active_file {files}\n"
        self.write(folder / "memory.stat", stat)

    def stalls(self, file, microseconds):
        lines = ("some", microseconds), ("full", 1)
        self.write(file, "".join(f"{k} avg10=0.00 avg60=0.00 avg300=0.00 total={us}\n" for k, us in lines))

    def memory(self):
        return container_memory(self.proc, self.cgroups)

    def meter(self):
        return WaitMeter(self.proc, self.cgroups, lambda: self.now)


@pytest.fixture
def kernel(tmp_path):
    return Kernel(tmp_path)


def test_version_2_without_the_pages_of_files(kernel):
    kernel.in_groups("0::/kube/pod")
    kernel.version_2("kube/pod", 900 * MIB, 1000 * MIB, files=100 * MIB)
    assert kernel.memory() == ContainerMemory(700 * MIB, 1000 * MIB)


def test_version_2_is_slowed_down_above_high(kernel):
    kernel.in_groups("0::/")
    kernel.version_2("", 900 * MIB, 1000 * MIB, high=950 * MIB)
    assert kernel.memory() == ContainerMemory(900 * MIB, 950 * MIB)


def test_the_nearest_limit_of_nested_groups_counts(kernel):
    kernel.in_groups("0::/kube/pod")
    kernel.version_2("kube", 1900 * MIB, 2000 * MIB)
    kernel.version_2("kube/pod", 300 * MIB, 1000 * MIB)
    assert kernel.memory() == ContainerMemory(1900 * MIB, 2000 * MIB)


def test_version_1(kernel):
    kernel.in_groups("9:name=systemd:/", "4:cpu,memory:/docker/1", "0::/")
    kernel.version_1("docker/1", 900 * MIB, 1000 * MIB, files=50 * MIB)
    kernel.version_1("", 5000 * MIB, NO_LIMIT_1)
    assert kernel.memory() == ContainerMemory(800 * MIB, 1000 * MIB)


def test_inside_a_container_its_root_counts(kernel):
    """The names are those outside of it: there is no such folder."""
    kernel.in_groups("4:memory:/docker/1")
    kernel.version_1("", 900 * MIB, 1000 * MIB)
    assert kernel.memory() == ContainerMemory(900 * MIB, 1000 * MIB)
    kernel.in_groups("0::/../../docker/1")
    kernel.version_2("", 100 * MIB, 200 * MIB)
    assert kernel.memory() == ContainerMemory(100 * MIB, 200 * MIB)


def test_without_a_limit_there_is_none(kernel):
    assert kernel.memory() is None, "no files at all"
    kernel.in_groups("0::/", "4:memory:/a")
    kernel.version_1("a", 900 * MIB, NO_LIMIT_1)
    kernel.version_2("", 900 * MIB)
    assert kernel.memory() is None


@pytest.mark.parametrize("content", ["", "much\n", "-\n"])
def test_files_of_another_form_are_no_limit(kernel, content):
    kernel.in_groups("0::/")
    kernel.version_2("", 900 * MIB, 1000 * MIB)
    kernel.write(kernel.cgroups / "memory.max", content)
    assert kernel.memory() is None


def test_this_machine_answers_or_has_no_limit():
    memory = container_memory()
    assert memory is None or 0 < memory.used <= memory.limit
    assert 0 <= WaitMeter().share(0.001) <= 1


def test_the_wait_is_the_share_of_the_time_in_which_a_process_of_the_container_waited(kernel):
    kernel.in_groups("0::/kube/pod")
    kernel.version_2("kube/pod", 1, stalled_us=5_000_000)
    kernel.stalls(kernel.proc / "pressure/memory", 0)
    meter = kernel.meter()
    kernel.now = 4.0
    assert meter.share(0.001) == 0
    kernel.stalls(kernel.cgroups / "kube/pod/memory.pressure", 6_000_000)
    kernel.stalls(kernel.proc / "pressure/memory", 3_000_000)
    assert meter.share(0.001) == 0.25
    kernel.now = 0.1
    assert meter.share(0.001) == 1.0
    kernel.stalls(kernel.cgroups / "kube/pod/memory.pressure", 5_010_000)
    assert meter.share(0.001) == pytest.approx(0.01), "of a second at least"


def test_without_groups_the_machine_counts(kernel):
    kernel.stalls(kernel.proc / "pressure/memory", 2_000_000)
    meter = kernel.meter()
    kernel.now = 2.0
    kernel.stalls(kernel.proc / "pressure/memory", 3_000_000)
    assert meter.share(0.001) == 0.5


def test_a_kernel_that_does_not_measure_waits_counts_page_faults(kernel, monkeypatch):
    faults = SimpleNamespace(ru_majflt=100)
    monkeypatch.setattr(resource, "getrusage", lambda _who: faults)
    meter = kernel.meter()
    kernel.now = 10.0
    faults.ru_majflt = 600
    assert meter.share(0.001) == pytest.approx(0.05)
    assert meter.share(0.01) == pytest.approx(0.5)
    assert meter.share(0) == 0
