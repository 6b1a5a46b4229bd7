"""The Lua on the servers is replaced by a newer RELEASE only, so it never changes without one."""

import hashlib
import re

from tidegate.sinks.redis_functions import RELEASE, source

PINNED = {11: "75e29fbce8e344cadd82a25dc634e629"}
"""The digest of the Lua of each release, the newest alone is needed."""


def test_the_lua_changes_with_its_release_only():
    text = re.sub(r"return \d+ end\Z", "return RELEASE end", source())
    digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    assert PINNED.get(RELEASE) == digest, (
        "sinks/lua/*.lua changed: servers that have the old text keep it, unless the number is higher."
        " Raise RELEASE in sinks/redis_functions.py by one, unless the present one was never released, and"
        f" write {{{RELEASE}: {digest!r}}} (with the number as it is then) here"
    )
