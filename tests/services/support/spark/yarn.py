"""YARN on this machine: a ResourceManager and a NodeManager, each a process of its own."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from xml.sax.saxutils import escape

from services.support.jars import fetched_jars, java
from services.support.leak_guard import Guarded
from services.support.servers import PortTakenError, end_all, free_ports, on_free_ports
from services.support.spark.cluster import spark_home
from support.wait import wait_until

VERSION = "3.5.0"
POM = Path(__file__).with_name("yarn.xml")
SERVERS = {
    "resourcemanager": "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager",
    "nodemanager": "org.apache.hadoop.yarn.server.nodemanager.NodeManager",
}
STOP_S = 30.0
OF_NODE = ("address", "localizer.address", "webapp.address", "collector-service.address")
OF_MANAGER = ("address", "scheduler.address", "resource-tracker.address", "admin.address", "webapp.address")


class YarnCluster:
    """``environment`` is what a client needs: the folders of Hadoop's and Spark's settings."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._processes: dict[str, Guarded] = {}
        self._pages = ""

    @property
    def environment(self) -> dict[str, str]:
        return {"HADOOP_CONF_DIR": str(self.folder), "SPARK_CONF_DIR": str(self.folder)}

    def __enter__(self) -> YarnCluster:  # noqa: PYI034 - nobody inherits from it
        on_free_ports(self._start)
        return self

    def __exit__(self, *_: object) -> None:
        end_all(self._processes.values(), STOP_S)  # the NodeManager ends its containers

    def attempts(self) -> list[int]:
        """By application, oldest first: how often its master was started."""
        applications = self._told("apps")["apps"]["app"]
        numbers = sorted(one["id"] for one in applications)
        return [len(self._told(f"apps/{one}/appattempts")["appAttempts"]["appAttempt"]) for one in numbers]

    def _start(self) -> None:
        self._configure(free_ports(len(OF_MANAGER)))
        jars = fetched_jars(f"yarn-{VERSION}", POM, f"hadoop-client-minicluster-{VERSION}.jar")
        for name, main in SERVERS.items():
            command = [java(), "-Xmx512m", "-cp", f"{self.folder}:{jars}/*", main]
            self._processes[name] = Guarded(command, self.folder / f"{name}.log")
        try:
            wait_until(self._is_ready, "YARN has a node", STOP_S * 3)
        except BaseException:
            self.__exit__()
            raise

    def _configure(self, ports: list[int]) -> None:
        local = [f"127.0.0.1:{port}" for port in ports]
        self._pages = local[-1]
        settings = {
            **{f"yarn.resourcemanager.{name}": at for name, at in zip(OF_MANAGER, local, strict=True)},
            **{f"yarn.nodemanager.{name}": "127.0.0.1:0" for name in OF_NODE},
            "yarn.nodemanager.hostname": "127.0.0.1",
            "yarn.nodemanager.local-dirs": f"{self.folder}/local",
            "yarn.nodemanager.log-dirs": f"{self.folder}/logs",
            "yarn.nodemanager.resource.memory-mb": "8192",
            "yarn.nodemanager.resource.cpu-vcores": "8",
            "yarn.nodemanager.disk-health-checker.enable": "false",  # this machine's disk may be nearly full
            "yarn.nodemanager.vmem-check-enabled": "false",
            "yarn.scheduler.minimum-allocation-mb": "256",
            "yarn.resourcemanager.scheduler.class": (
                "org.apache.hadoop.yarn.server.resourcemanager.scheduler.fifo.FifoScheduler"
            ),
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "yarn-site.xml").write_text(_xml(settings))
        (self.folder / "core-site.xml").write_text(_xml({"fs.defaultFS": "file:///"}))
        (self.folder / "log4j.properties").write_text(
            "log4j.rootLogger=WARN, console\n"
            "log4j.appender.console=org.apache.log4j.ConsoleAppender\n"
            "log4j.appender.console.layout=org.apache.log4j.SimpleLayout\n"
        )
        (self.folder / "spark-defaults.conf").write_text(
            f"spark.yarn.jars local:{spark_home()}/jars/*\n"
            "spark.yarn.am.memory 512m\n"
            "spark.driver.memory 512m\n"
            "spark.executor.instances 2\n"
            "spark.yarn.report.interval 200ms\n"
        )

    def _is_ready(self) -> bool:
        for name, process in self._processes.items():
            log = (self.folder / f"{name}.log").read_text(errors="replace")
            if "BindException" in log:
                raise PortTakenError(log[-2000:])
            assert process.alive(), f"{name} has ended: {log[-2000:]}"
        try:
            nodes = self._told("nodes")["nodes"]
        except OSError:
            return False
        return bool(nodes) and [node["state"] for node in nodes["node"]] == ["RUNNING"]

    def _told(self, about: str) -> dict:
        with urllib.request.urlopen(f"http://{self._pages}/ws/v1/cluster/{about}", timeout=5) as answer:
            return json.load(answer)


def _xml(settings: dict[str, str]) -> str:
    each = (
        f"<property><name>{name}</name><value>{escape(at)}</value></property>"
        for name, at in settings.items()
    )
    return f"<configuration>{''.join(each)}</configuration>\n"
