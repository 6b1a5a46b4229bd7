"""The pages quote the files of rights, which the tests of hostile tenants use as they are."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RIGHTS = ROOT / "deploy" / "rights"


def words(text):
    return text.replace(" >...", "").split()


@pytest.mark.parametrize(
    "page,file,of",
    [
        ("redis", "redis.acl", r"^user (.*(?:\n  .*)*)"),
        ("kafka", "kafka.sh", r"^kafka-acls (.*)$"),
        ("cassandra", "cassandra.cql", r"^GRANT (.*)$"),
    ],
)
def test_a_page_has_the_rights_of_its_file(page, file, of):
    shown = re.findall(of, (ROOT / "docs" / f"{page}.md").read_text(), re.MULTILINE)
    kept = re.findall(of, (RIGHTS / file).read_text(), re.MULTILINE)
    assert sorted(map(words, shown)) == sorted(map(words, kept))
    assert f"deploy/rights/{file}" in (ROOT / "docs" / f"{page}.md").read_text()


def test_no_default_user_is_left_on():
    assert (RIGHTS / "redis.acl").read_text().startswith("user default off\n")
    off = "ALTER ROLE cassandra WITH SUPERUSER = false AND LOGIN = false"
    assert off in (RIGHTS / "cassandra.cql").read_text()
    assert "allow.everyone.if.no.acl.found=false" in (RIGHTS / "kafka.sh").read_text()


def test_no_password_is_in_a_file():
    assert not re.findall(r"\s[>#]\S", (RIGHTS / "redis.acl").read_text())
