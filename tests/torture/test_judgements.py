"""Judgements of histories that are short enough to be read."""

import pytest

from tidegate.errors import ConfigError, CorruptError
from tidegate.torture.history import events
from tidegate.torture.history.files import RowDigest
from tidegate.torture.judge import second_pass
from tidegate.torture.judge.check import check
from tidegate.torture.judge.verdict import MOST_LISTED
from write_histories import held, looked, offered, raised, read, returned, rows, write


def broken(folder, *lines):
    verdict = check(write(folder, *lines))
    assert verdict.ok == (not verdict.broken)
    return set(verdict.broken)


def test_a_finding_says_what_where_and_why(tmp_path):
    lines = [offered(1, 0, rows(a=1, b=1)), returned(1, 1), offered(2, 1, rows(a=2, b=2)), returned(2, 2)]
    verdict = check(write(tmp_path, *lines, held(2), read(a=2), read(b=1)))
    assert "\n".join(verdict.lines()) == (
        "checked: 1 clients, 9 events, 1 files, 2 keys, 1 namespaces, 2 offers, 2 reads, 1 snapshots,"
        " 2 versions\n"
        "I1 atomic, namespace made: snapshot of version 2, table 't', key 'b':"
        " the change of version 2 is missing, others of it were seen; it is as version 1 made it\n"
        "  expected: 2, written in version 2\n"
        "  seen:     1\n"
        "  lines:    p.jsonl:9, p.jsonl:3, p.jsonl:5\n"
        "broken: atomic"
    )


# -- outcomes that are not known -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "end", [[], [raised(1, "OutcomeUnknownError")], [raised(1, "StoreUnavailableError")]]
)
def test_an_unknown_outcome_may_be_either_but_the_same_for_all(tmp_path, end):
    begin = [offered(1, 0, rows(a=1)), *end]
    assert broken(tmp_path, *begin) == set()
    assert broken(tmp_path, *begin, looked(0)) == set()
    assert broken(tmp_path, *begin, looked(1), held(1), read(a=1)) == set()
    assert broken(tmp_path, *begin, looked(1), looked(0)) == {"monotonic", "regressed"}
    assert broken(tmp_path, *begin, held(1), read(absent=["a"])) == {"lost"}
    assert broken(tmp_path, *begin, held(1), read(a=1), read(absent=["a"])) == {"repeatable"}
    assert broken(tmp_path, *begin, looked(2)) == {"hole"}


@pytest.mark.parametrize(
    "error", sorted({"ConflictError", "BadRecordError", "LineageError", "FunctionError"})
)
def test_what_was_proven_undecided_is_never_seen(tmp_path, error):
    begin = [offered(1, 0, rows(a=1)), raised(1, error)]
    assert broken(tmp_path, *begin) == set()
    assert broken(tmp_path, *begin, looked(1)) == {"hole"}
    assert broken(tmp_path, *begin, offered(2, 0, rows(a=2)), returned(2, 1), held(1), read(a=1)) == {"ghost"}


def test_of_several_offers_of_a_batch_one_counts_and_all_of_it(tmp_path):
    """T6: a replay with other rows; the reads say which it was, and they must all say the same."""
    begin = [offered(1, 0, rows(a=1, b=1)), offered(2, 0, rows(a=2, b=2)), returned(2, 1), held(1)]
    assert broken(tmp_path, *begin, read(a=1, b=1)) == set()
    assert broken(tmp_path, *begin, read(a=2), read(b=2)) == set()
    assert broken(tmp_path, *begin, read(a=1, b=2)) == {"ghost"}
    assert broken(tmp_path, *begin, read(a=1), read(b=2)) == {"ghost"}
    begin[2] = returned(2, 1, own=True)
    assert broken(tmp_path, *begin, read(a=1, b=1)) == {"ghost"}
    begin[2] = returned(2, 1, own=False)
    assert broken(tmp_path, *begin, read(a=2)) == {"ghost"}
    assert broken(tmp_path, *begin, read(a=1)) == set()


def test_an_unknown_batch_is_settled_by_what_later_versions_show(tmp_path):
    """Of two checkpoints' first batches, one is version 1: nobody read it, but version 2 has its rows."""
    first = offered(1, 0, rows(a=1), lineage="A")
    other = offered(2, 0, rows(b=1), lineage="B")
    third = [offered(3, 1, rows(c=1), lineage="B"), returned(3, 2), held(2)]
    assert broken(tmp_path, first, other, *third, read(a=1, c=1)) == set()
    assert broken(tmp_path, first, other, *third, read(b=1, c=1)) == set()
    assert broken(tmp_path, first, other, *third, read(a=1, b=1)) != set()


def test_one_batch_is_not_two_unknown_versions(tmp_path):
    lines = [offered(1, 0, rows(a=1)), offered(2, 1, rows(a=2)), looked(2)]
    assert broken(tmp_path, *lines, held(2), read(a=2)) == set()
    assert broken(tmp_path, lines[0], offered(2, 0, rows(a=2)), looked(2)) == {"hole"}


def test_too_much_that_is_unknown_is_not_judged(tmp_path, monkeypatch):
    monkeypatch.setattr(second_pass, "MOST", 3)
    lines = []
    for batch in range(2):
        one, other = (offered(10 * batch + call, batch, rows(**{f"k{batch}": call})) for call in (1, 2))
        lines += [one, other, returned(one.call, batch + 1)]
    verdict = check(write(tmp_path, *lines, held(2), read(k0="neither")))
    assert not verdict.ok
    assert not verdict.broken
    assert "more than 3 contents" in "\n".join(verdict.lines())


# -- time -----------------------------------------------------------------------------------------------


def test_a_look_that_began_before_the_return_may_be_older(tmp_path):
    begin = [offered(1, 0, rows(a=1)), returned(1, 1), looked(0)]
    assert broken(tmp_path, *begin) == {"stale"}
    folder = write(tmp_path, *begin)
    lines = (folder / "p.jsonl").read_bytes()
    (folder / "p.jsonl").write_bytes(lines.replace(b'"began":45', b'"began":40'))
    assert check(folder).ok


# -- repairs ------------------------------------------------------------------------------------------------


def mended(version, key_groups=1, began=0):
    return events.PutBack(namespace="made", version=version, key_groups=key_groups, began=began)


def gone(version, *key_groups):
    rows = [events.Destroyed(version=version, key_group=group) for group in key_groups]
    return events.Fault(kind="evict", destroys=rows)


def test_a_repair_puts_back_what_a_fault_destroyed_and_nothing_else(tmp_path):
    begin = [offered(1, 0, rows(a=1)), returned(1, 1), offered(2, 1, rows(a=2)), returned(2, 2)]
    assert broken(tmp_path, *begin, gone(2, 0), mended(2)) == set()
    assert broken(tmp_path, *begin, gone(2, 0, 3), mended(2, key_groups=2)) == set()
    assert broken(tmp_path, *begin, mended(2)) == {"mended"}
    assert broken(tmp_path, *begin, mended(2), gone(2, 0)) == {"mended"}
    assert broken(tmp_path, *begin, gone(2, 0), mended(1)) == {"mended"}
    assert broken(tmp_path, *begin, gone(2, 0), mended(2, key_groups=2)) == {"mended"}
    assert broken(tmp_path, *begin, gone(2, 0), gone(2, 0), mended(2, key_groups=2)) == {"mended"}


def test_a_version_that_was_not_visible_yet_may_never_have_been_whole(tmp_path):
    begin = [offered(1, 0, rows(a=1)), returned(1, 1), offered(2, 1, rows(a=2))]
    assert broken(tmp_path, *begin, mended(2)) == set()
    returned_at = 60
    assert broken(tmp_path, *begin, returned(2, 2), mended(2, began=returned_at - 1)) == set()
    assert broken(tmp_path, *begin, returned(2, 2), mended(2, began=returned_at + 1)) == {"mended"}


def test_after_a_server_was_killed_anything_may_have_been_lost(tmp_path):
    begin = [offered(1, 0, rows(a=1)), returned(1, 1)]
    assert broken(tmp_path, *begin, events.Fault(kind="server", forgets=True), mended(1)) == set()


def test_while_a_fault_lasts_the_newest_version_may_be_an_older_one(tmp_path):
    """A replica is promoted that lacks versions which the primary showed: at some moment of the fault."""
    begin = [offered(1, 0, rows(a=1)), returned(1, 1), looked(1)]
    during = [offered(2, 1, rows(a=2)), returned(2, 2), looked(2), looked(1)]
    lasting = events.Fault(kind="cut", forgets=True, lasts=True)
    end = events.Fault(kind="cut", forgets=True)
    assert broken(tmp_path, *begin, *during) >= {"stale"}
    assert broken(tmp_path, *begin, end, *during) >= {"stale"}, "it forgot before that, and not since"
    assert broken(tmp_path, *begin, lasting, *during) == set()
    assert broken(tmp_path, *begin, lasting, *during, end, looked(1)) == set()
    assert broken(tmp_path, *begin, lasting, *during, end, looked(2), looked(1)) == {"monotonic", "regressed"}


def test_a_store_that_forgets_by_our_doing_may_show_less(tmp_path):
    begin = [offered(1, 0, rows(a=1)), returned(1, 1), looked(1)]
    fault = events.Fault(kind="restored", forgets=True)
    failed = events.Failed(client=1, what="version", error="VersionRegressedError", began=0)
    assert broken(tmp_path, *begin, fault, failed, looked(0)) == set()
    assert broken(tmp_path, *begin, failed) == {"regressed"}
    assert broken(tmp_path, *begin, fault, looked(0), looked(1), looked(0)) == {"monotonic", "regressed"}


def test_another_store_has_a_time_of_its_own(tmp_path):
    begin = [offered(1, 0, rows(a=1)), returned(1, 1)]
    behind = events.Connected(client=2, namespace="made", store="copy")
    assert broken(tmp_path, *begin, behind, looked(0, client=2)) == set()
    assert broken(tmp_path, *begin, behind, looked(1, client=2), looked(0, client=2)) == {
        "monotonic",
        "regressed",
    }


def test_a_read_at_the_newest_version_fits_some_version_it_can_be_of(tmp_path):
    begin = [offered(1, 0, rows(a=1, b=1)), returned(1, 1), offered(2, 1, rows(a=2, b=2))]
    for fits in (read(snapshot=0, a=1, b=1), read(snapshot=0, a=2, b=2)):
        assert broken(tmp_path, *begin, fits, returned(2, 2)) == set()
    assert broken(tmp_path, *begin, read(snapshot=0, a=1, b=2), returned(2, 2)) == {"atomic"}
    assert broken(tmp_path, *begin, returned(2, 2), read(snapshot=0, a=1, b=1)) == {"lost"}


@pytest.mark.parametrize(
    "told",
    [
        [events.Listed(client=1, versions=[2], began=0)],
        [events.Asked(call=9, namespace="made", command="retire"), events.Done(call=9, horizon=2)],
    ],
)
def test_below_the_horizon_nothing_is_absent(tmp_path, told):
    begin = [offered(1, 0, rows(a=1)), returned(1, 1), held(1), offered(2, 1, rows(b=1)), returned(2, 2)]
    expired = events.Failed(client=1, snapshot=1, what="get", error="SnapshotExpiredError", began=0)
    assert broken(tmp_path, *begin, *told, expired) == set()
    assert broken(tmp_path, *begin, *told, read(a=1)) == set()
    assert broken(tmp_path, *begin, *told, read(absent=["a"])) == {"retired"}


# -- zombies ---------------------------------------------------------------------------------------------


def opened(driver, epoch):
    return events.Opened(driver=driver, namespace="made", epoch=epoch)


def test_a_driver_behind_whom_another_opened_has_no_effect(tmp_path):
    begin = [opened("old", 1), opened("new", 2), offered(1, 0, rows(a=1), driver="old")]
    assert broken(tmp_path, *begin, raised(1, "FencedError")) == set()
    assert broken(tmp_path, *begin, returned(1, 1)) == {"zombie"}
    assert broken(tmp_path, *begin, looked(1)) == {"hole"}
    same = [offered(2, 0, rows(a=2), driver="new"), returned(2, 1), held(1)]
    assert broken(tmp_path, *begin, *same, read(a=2)) == set()
    assert broken(tmp_path, *begin, *same, read(a=1)) == {"zombie"}
    assert (
        broken(tmp_path, *begin, *same, returned(1, 1), read(a=2)) == set()
    )  # told of what the other decided


def test_what_it_offered_before_may_still_count(tmp_path):
    begin = [opened("old", 1), offered(1, 0, rows(a=1), driver="old"), opened("new", 2)]
    assert broken(tmp_path, *begin, raised(1, "FencedError"), held(1), read(a=1)) == set()
    again = offered(2, 1, rows(a=2), driver="old")
    assert broken(tmp_path, *begin, raised(1, "FencedError"), again, returned(2, 2)) != set()
    assert broken(tmp_path, *begin, opened("old", 3), again, returned(2, 2), held(2), read(a=2)) == set()


# -- forms ----------------------------------------------------------------------------------------------


def test_recipes_are_followed(tmp_path):
    recipe = offered(1, 0)
    recipe.recipe = {"workload": "marker", "batch": 0}
    write(tmp_path, recipe, returned(1, 1), held(1), read(a=7))
    assert check(tmp_path, lambda _: [rows(a=7)]).ok
    assert check(tmp_path, lambda _: [rows(a=8)]).broken == {"ghost": 1}
    with pytest.raises(ConfigError, match="recipe"):
        check(tmp_path)


def scanned(content=None, **live):
    digest = RowDigest()
    for key, value in live.items():
        digest.add(key, value)
    return events.Scanned(
        client=1, snapshot=1, table="t", rows=digest.rows, digest=digest.text(), content=content, began=0
    )


def test_scans_by_digest_and_by_content(tmp_path):
    begin = [offered(1, 0, rows(a=1, b=None, c={"n": 1})), returned(1, 1), held(1)]
    assert broken(tmp_path, *begin, scanned(a=1, c={"n": 1})) == set()
    assert broken(tmp_path, *begin, scanned({"a": 1, "c": {"n": 1}}, a=1, c={"n": 1})) == set()
    assert broken(tmp_path, *begin, scanned(a=1)) == {"atomic"}
    assert broken(tmp_path, *begin, scanned({"a": 1}, a=1)) == {"atomic"}
    assert broken(tmp_path, *begin, scanned({})) == {"lost"}
    assert broken(tmp_path, *begin, scanned({"a": 1, "c": {"n": 1}}, a=1)) == {"atomic"}
    assert broken(tmp_path, *begin, scanned(a=1), scanned(a=1, c={"n": 1})) == {"repeatable"}


COUNTS = events.Change(table="t_values", counts="t")


def counted(absent=(), **found):
    found = {key.lstrip("_"): {"n": number} for key, number in found.items()}
    return events.Read(client=1, snapshot=1, table="t_values", found=found, absent=list(absent), began=0)


def test_a_derived_table_is_recounted_at_each_version(tmp_path):
    begin = [offered(1, 0, COUNTS, rows(a=1, b=1, c=2)), returned(1, 1)]
    begin += [offered(2, 1, rows(a=2, d=3), COUNTS), returned(2, 2)]
    first, second = [*begin[:2], held(1), read(a=1)], [*begin, held(2), read(a=2)]
    assert broken(tmp_path, *first, counted(_1=2, _2=1, absent=["3"])) == set()
    assert broken(tmp_path, *second, counted(_1=1, _2=2, _3=1)) == set()
    assert broken(tmp_path, *first, counted(_1=3)) == {"ghost"}
    assert broken(tmp_path, *first, counted(absent=["2"])) == {"atomic"}
    assert broken(tmp_path, *second, counted(_1=2)) == {"atomic"}, "as it was before"
    assert broken(tmp_path, *second, counted(absent=["3"])) == {"atomic"}
    assert broken(tmp_path, *first, counted(_3=1)) == {"ghost"}
    scan = scanned({"1": {"n": 1}, "2": {"n": 2}}, **{"1": {"n": 1}, "2": {"n": 2}})
    scan.table = "t_values"
    assert broken(tmp_path, *second, scan) == {"atomic"}, "a group is missing"


@pytest.mark.parametrize("last", [rows(a=None), events.Change(table="t", replace=True, rows={"b": 2})])
def test_a_group_without_rows_is_gone(tmp_path, last):
    begin = [offered(1, 0, rows(a=1, b=2), COUNTS), returned(1, 1), offered(2, 1, last, COUNTS)]
    begin += [returned(2, 2), held(2)]
    assert broken(tmp_path, *begin, read(b=2), counted(_2=1, absent=["1"])) == set()
    assert broken(tmp_path, *begin, read(b=2), counted(_1=1)) == {"resurrected"}


def test_numbers_and_truth_are_not_the_same(tmp_path):
    begin = [offered(1, 0, rows(a=1)), returned(1, 1), held(1)]
    assert broken(tmp_path, *begin, read(a=True)) == {"ghost"}
    assert broken(tmp_path, *begin, read(a="1")) == {"ghost"}


@pytest.mark.parametrize(
    "lines",
    [
        [returned(1, 1)],
        [offered(1, 0), returned(1, 1), returned(1, 1)],
        [offered(1, 0), returned(1, 0)],
        [offered(1, 0), events.Done(call=1)],
        [events.Asked(call=1, namespace="made", command="recover"), returned(1, 1)],
        [looked(1, client=9)],
        [read(snapshot=3, a=1)],
        [offered(1, 0, events.Change(table="t", rows={"a": 1}, append={"a": [1]})), returned(1, 1)],
        [offered(1, 0, events.Change(table="t", reduce={"a": {"n": 1}})), returned(1, 1)],
    ],
)
def test_what_is_no_history_is_corrupt(tmp_path, lines):
    with pytest.raises(CorruptError):
        check(write(tmp_path, *lines))


def test_many_findings_are_counted_and_few_listed(tmp_path):
    begin = [offered(1, 0, rows(a=1)), returned(1, 1), held(1)]
    verdict = check(write(tmp_path, *begin, *[read(a=2) for _ in range(second_pass.MOST_EXPLAINED + 50)]))
    assert sum(verdict.broken.values()) == second_pass.MOST_EXPLAINED + 50
    assert len(verdict.findings) == MOST_LISTED
    assert "ghost: 180 more" in "\n".join(verdict.lines())


def test_torn_snapshots_are_listed_however_many_there_are(tmp_path):
    """They were counted before the first of them was traced, and none was listed: the cell was proven."""
    begin = [offered(1, 0, rows(a=1, b=1)), returned(1, 1), offered(2, 1, rows(a=2, b=2)), returned(2, 2)]
    many = [read(a=2), *[read(b=1) for _ in range(second_pass.MOST_EXPLAINED + MOST_LISTED + 1)]]
    verdict = check(write(tmp_path, *begin, held(2), *many))
    assert verdict.broken == {"atomic": len(many) - 1}
    assert len(verdict.findings) == MOST_LISTED


def test_namespaces_are_judged_apart(tmp_path):
    other = offered(2, 0, rows(a=2))
    other.namespace = "other"
    write(tmp_path, offered(1, 0, rows(a=1)), returned(1, 1), other, returned(2, 1), held(1), read(a=1))
    verdict = check(tmp_path)
    assert verdict.ok
    assert verdict.counts["namespaces"] == 2


def test_files_are_read_again_with_few_open(tmp_path, monkeypatch):
    monkeypatch.setattr("tidegate.torture.history.source.MOST_OPEN", 2)
    write(tmp_path, offered(1, 0, rows(a=1)), returned(1, 1))
    for name in "qrst":
        write(
            tmp_path, events.Ended(), events.Ended(), held(1), read(a=1), held(1, 2), read(2, a=1), name=name
        )
    assert check(tmp_path).ok
