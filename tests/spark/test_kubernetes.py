"""deploy/kubernetes: objects that a server takes, and executors' pods as Spark's own code makes them."""

from __future__ import annotations

from pathlib import Path

import kubernetes_validate
import pytest
import yaml

pytestmark = pytest.mark.spark

FILE = Path(__file__).parents[2] / "deploy/kubernetes/query.yaml"
SERVERS = ("1.28", "1.37")
OF_POD = {"$(POD_NAMESPACE)": "streams", "$(POD_NAME)": "flights-7d", "$(POD_IP)": "10.1.2.3"}
"""What the kubelet puts for the driver's variables."""


@pytest.fixture(scope="module")
def objects():
    each = {each["kind"]: each for each in yaml.safe_load_all(FILE.read_text())}
    return {**each, "Pod": yaml.safe_load(each["ConfigMap"]["data"]["executor.yaml"])}


@pytest.mark.parametrize("server", SERVERS)
def test_a_server_takes_each_object(objects, server):
    assert len(objects) == 7
    for each in objects.values():
        kubernetes_validate.validate(each, server, strict=True)


def test_names_that_objects_use_are_those_of_others(objects):
    pod = objects["Deployment"]["spec"]["template"]
    labels = pod["metadata"]["labels"]
    assert labels == objects["Deployment"]["spec"]["selector"]["matchLabels"]
    assert labels == objects["Service"]["spec"]["selector"]
    assert objects["Pod"]["metadata"]["labels"].items() < labels.items(), "executors are not the driver"
    of_role = {objects[kind]["metadata"]["name"] for kind in ("ServiceAccount", "Role", "RoleBinding")}
    assert of_role == {pod["spec"]["serviceAccountName"]}
    assert pod["spec"]["volumes"][0]["configMap"]["name"] == objects["ConfigMap"]["metadata"]["name"]


def test_spark_makes_executors_that_find_the_driver_and_have_the_template(spark, objects, tmp_path):
    (container,) = objects["Deployment"]["spec"]["template"]["spec"]["containers"]
    template = tmp_path / "executor.yaml"
    template.write_text(objects["ConfigMap"]["data"]["executor.yaml"])
    mounted = container["volumeMounts"][0]["mountPath"]
    words = container["args"]
    for name, value in {**OF_POD, f"{mounted}/executor.yaml": str(template)}.items():
        words = [word.replace(name, value) for word in words]
    of_spark = [word.removeprefix("--conf=") for word in words if word.startswith("--conf=")]
    settings = dict(word.split("=", 1) for word in of_spark)
    pod, made = _executor(spark, settings)
    assert pod["spec"]["securityContext"] == objects["Pod"]["spec"]["securityContext"]
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert made["image"] == container["image"]
    assert {"name": "state", "mountPath": "/var/lib/tidegate"} in made["volumeMounts"]
    of_driver = {each["name"]: each.get("value") for each in made["env"]}["SPARK_DRIVER_URL"]
    service = f"{objects['Service']['metadata']['name']}.streams.svc"
    assert of_driver.partition("@")[2] in (f"{service}:7078", "10.1.2.3:7078")


def _executor(spark, settings):
    """Return the pod and its container, as the driver's scheduler sends them."""
    jvm, written = spark._jvm, spark._jvm.io.fabric8.kubernetes.client.utils.Serialization
    core, kubernetes = jvm.org.apache.spark, jvm.org.apache.spark.deploy.k8s
    conf = core.SparkConf(False)
    of_submit = {"spark.app.name": "flights", "spark.master": "k8s://https://kubernetes.default.svc"}
    for name, value in {**settings, **of_submit}.items():
        conf.set(name, value)
    conf.set("spark.kubernetes.executor.podNamePrefix", "flights")
    profiles, security = (
        getattr(getattr(package, f"{name}$"), "MODULE$")
        for package, name in ((core.resource, "ResourceProfile"), (core, "SecurityManager"))
    )
    defaults = [getattr(security, f"$lessinit$greater$default${place}")() for place in (2, 3)]
    client = jvm.io.fabric8.kubernetes.client.KubernetesClientBuilder().build()
    try:
        made = core.scheduler.cluster.k8s.KubernetesExecutorBuilder().buildFromFeatures(
            kubernetes.KubernetesExecutorConf(conf, "flights", "1", jvm.scala.Option.empty(), 0),
            core.SecurityManager(conf, *defaults),
            client,
            profiles.getOrCreateDefaultProfile(conf),
        )
    finally:
        client.close()
    return (yaml.safe_load(written.asYaml(part)) for part in (made.pod().pod(), made.pod().container()))
