"""Users of Kafka with exactly the rights of deploy/rights/kafka.sh."""

import re

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from services.support.kafka.query import WAIT_S
from services.support.kafka.server import KafkaCluster
from services.support.servers import ROOT
from support.wait import wait_until

FILE = ROOT / "deploy" / "rights" / "kafka.sh"
PASSWORD = "Pa55-of-all"
AUTHORIZED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    # The broker itself comes by a listener without a login, the tests by the first of the users.
    "super.users": "User:ANONYMOUS;User:admin",
}
WRITER, READER = "tidegate-writer", "tidegate-reader"
RIGHTS = {
    "DescribeConfigs": AclOperation.DESCRIBE_CONFIGS,
    **{name: AclOperation[name.upper()] for name in ("Create", "Read", "Write", "Delete", "Describe")},
}


def rights_of(user):
    """The operations that the file grants a user, on the topics of one namespace."""
    (line,) = re.findall(rf"^kafka-acls .*?User:{user} (.*)$", FILE.read_text(), re.MULTILINE)
    assert line.endswith("--topic tidegate.flights. --resource-pattern-type prefixed")
    return re.findall(r"--operation (\w+)", line)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    users = dict.fromkeys(("admin", WRITER, READER), PASSWORD)
    folder = tmp_path_factory.mktemp("kafka")
    with KafkaCluster(folder, sasl=users, settings=AUTHORIZED) as cluster:
        yield cluster


class Users:
    def __init__(self, cluster, query):
        self.query, self._admin = query, AdminClient(cluster.client_settings)

    def grant(self, user, rights, **more):
        """These rights and no others, on the query's topics, and ``more`` on one topic each; waits until the
        broker knows.
        """
        topics = f"{self.query.prefix}.{self.query.namespace}."
        everything = ResourceType.ANY, None, ResourcePatternType.ANY, f"User:{user}", None
        every = AclBindingFilter(*everything, AclOperation.ANY, AclPermissionType.ANY)
        self._admin.delete_acls([every])[every].result(WAIT_S)
        wanted = [(topics, ResourcePatternType.PREFIXED, name) for name in rights]
        wanted += [(topics + kind, ResourcePatternType.LITERAL, name) for kind, name in more.items()]
        bindings = [
            AclBinding(
                ResourceType.TOPIC, at, pattern, f"User:{user}", "*", RIGHTS[name], AclPermissionType.ALLOW
            )
            for at, pattern, name in wanted
        ]
        for done in self._admin.create_acls(bindings).values() if bindings else ():
            done.result(WAIT_S)
        expected = {(at, RIGHTS[name]) for at, _, name in wanted}
        wait_until(lambda: self._known(every) == expected, "the rights are known")

    def _known(self, every):
        found = self._admin.describe_acls(every).result(WAIT_S)
        return {(each.name, AclOperation(each.operation)) for each in found}

    def as_user(self, name, **more):
        return {"sasl.username": name, "sasl.password": PASSWORD, **more}
