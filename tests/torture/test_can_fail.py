"""A suite that cannot fail proves nothing: rules of the protocol are broken by hand, and torture says so.

Each runs in a copy of the tree with one edit, as ``make mutants`` does it; the cell is one in which the
rule matters. Without the edit the same cell is proven.
"""

import pytest

from broken_tree import ROOT, WRONG_ROWS, edited, made, tortured

pytestmark = pytest.mark.timeout(900)  # many processes, on a machine that may be busy

UNSEALED = (
    "committers/steps/seal.py",
    "            coordinator.apply_on_executors(apply.plan(manifest, decided, tasks))\n",
    "            coordinator.apply_on_executors(apply.plan(manifest, decided, tasks)[:-1])\n",
)
NOT_READ_BACK = (
    "committers/states.py",
    "    State.SEALED: {Event.FLIPPED: State.VISIBLE, Event.NOT_FLIPPED: State.READING_BACK},\n",
    "    State.SEALED: {Event.FLIPPED: State.VISIBLE, Event.NOT_FLIPPED: State.VISIBLE},\n",
)
NOT_RECOVERED = ("committers/opening/open.py", "    return recover(coordinator)\n", "    return []\n")
NOTHING_FINISHED = (
    "committers/background/finish.py",
    '        recovered = open_namespace(coordinator, None, command="recover")\n',
    "        recovered = []\n",
)
ANY_FINGERPRINT = ("wal/fold.py", "decided.origin.fingerprint != origin.fingerprint", "False")
OLD_STATE = (
    "src/tidegate/torture/driver/barriers.py",
    "self.read_rows(base_version)",
    "self.read_rows(max(base_version - 1, 0))",
)

FLIP = "    WHERE visible = :version - 1 AND horizon < :version AND epoch <= :epoch"
NO_EPOCH = ("sinks/sqlite/pointer.py", FLIP, "    WHERE visible = :version - 1 AND horizon < :version")
ANY_VERSION = ("sinks/sqlite/pointer.py", FLIP, FLIP.replace("visible = :version - 1", "visible < :version"))
NO_CLAIM = ("committers/opening/open.py", "    claim_epoch(coordinator)\n", "")
NOT_COUNTED = (
    "sinks/sqlite/rows.py",
    "                    if is_whole(counted, counts[group]):\n",
    "                    if True:\n",
)
# Either of the two refuses by itself: the floor is for a pointer that is an older copy.
NO_HORIZON = (
    "sinks/sqlite/store.py",
    "        check_kept(self.where, version, pointer.horizon)\n",
    "        pass\n",
)
NO_FLOOR = ("sinks/sqlite/rows.py", "            if group in groups:\n", "            if False:\n")

RETIRED_ONCE = ("sinks/sqlite/leases.py", "min(horizon, visible)", "min(3, visible)")
RETIRES = "        if not self._shards.retire(version, changes, stopped):\n"
NEVER_RETIRED = ("sinks/sqlite/store.py", RETIRES, f"        self._decode('', CatalogEntry)\n{RETIRES}")

NOT_DESTROYED = (
    "src/tidegate/torture/driver/driver.py",
    "destroys=rows",
    "destroys=[]",
)

BROKEN = [
    (
        "a version is published before all is sealed",
        UNSEALED,
        "seal.after:twice:same",
        {*WRONG_ROWS, "verify"},  # on a busy machine nobody has looked, maybe, before the judge does
    ),
    ("a flip that is not confirmed is taken for done", NOT_READ_BACK, "publish.before:io:same", {"stale"}),
    ("an opening driver leaves what was decided", NOT_RECOVERED, "publish.before:kill:second", {"finish"}),
    ("the command that recovers does nothing", NOTHING_FINISHED, "publish.before:kill:recover", {"finish"}),
    (
        "a replanned batch is taken for a replay",
        ANY_FINGERPRINT,
        "seal.after:old-checkpoint:same",
        {"finish"},
    ),
    # A reader may be the first who sees it: values that nobody offered. Or that version is retired already.
    (
        "state is read at an older version",
        OLD_STATE,
        "seal.after:twice:same",
        {*WRONG_ROWS, "ghost", "finish"},
    ),
    ("a flip of any epoch is done", NO_EPOCH, "publish.before:stop:claimed", {"zombie"}),
    ("an opening driver claims nothing", NO_CLAIM, "publish.before:stop:claimed", {"zombie"}),
    ("a flip leaves out versions", ANY_VERSION, "publish.before:stop:claimed", {"stray"}),
    ("a seal counts nothing", NOT_COUNTED, "apply.before_chunk:forgotten:same", WRONG_ROWS),
    ("a horizon stays where it is", RETIRED_ONCE, "retire.after_announce:twice:same", {"finish"}),
    ("retirement fails permanently", NEVER_RETIRED, "retire.after_announce:kill:second", {"error", "finish"}),
    ("a repair mends what nobody destroyed", NOT_DESTROYED, "repair.before_listing:lost:same", {"mended"}),
    (
        "what is retired is read",
        (*NO_HORIZON, *NO_FLOOR),
        "retire.after_group:twice:same",
        {*WRONG_ROWS, "retired"},
    ),
]


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the tree, as one plain package."""
    return made(tmp_path_factory.mktemp("tree"))


@pytest.mark.slow
def test_without_an_edit_the_same_cells_are_proven(tree, tmp_path):
    cells = sorted({cell for _, _, cell, _ in BROKEN})
    code, report = tortured(tmp_path, tree, *(f"--only={cell}" for cell in cells))
    assert (code, report["results"]) == (0, {"proven": len(cells)})


REFUSED = (
    "src/tidegate/torture/cell/readers.py",
    "        async with await tidegate.aio.connect(",
    "        raise ConfigError('refused')\n        async with await tidegate.aio.connect(",
)


@pytest.mark.slow
def test_a_reader_that_is_always_refused_proves_nothing(tree, tmp_path):
    with edited(tree, REFUSED):
        code, report = tortured(tmp_path, tree, "--only=seal.after:twice:same")
    assert (code, report["results"]) == (1, {"unproven": 1})
    (open_question,) = report["not_proven"][0]["outcome"]["unproven"]
    assert "readers aio had no answer" in open_question


@pytest.mark.parametrize(
    "what,edit,cell,rules", BROKEN, ids=lambda value: value if isinstance(value, str) else ""
)
def test_the_text_to_change_is_there(what, edit, cell, rules):
    """The tests below run in make full alone, and six of them quoted text that had changed."""
    for name, old, _ in zip(edit[::3], edit[1::3], edit[2::3], strict=True):
        assert old in (ROOT / name).read_text(), name


@pytest.mark.slow
@pytest.mark.parametrize(
    "what,edit,cell,rules", BROKEN, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_broken_rule_is_reported(tree, tmp_path, what, edit, cell, rules):
    with edited(tree, edit):
        code, report = tortured(tmp_path, tree, f"--only={cell}", "--cell-deadline", "30s")
    assert code == 1
    (wrong,) = report["not_proven"]
    found = {finding["rule"] for finding in wrong["outcome"]["findings"]}
    assert found & rules, wrong
    assert wrong["repeat"].endswith(f"--only {cell}:1")
