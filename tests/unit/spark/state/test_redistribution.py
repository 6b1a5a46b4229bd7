"""Which items of which old instances a new one begins with: nothing lost, nothing doubled, in order."""

from hypothesis import given
from hypothesis import strategies as st

from tidegate.spark.state.redistribution import Run, all_items, even_share, relatives

COUNTS = st.lists(st.integers(0, 9), min_size=1, max_size=12)
PARALLELISM = st.integers(1, 40)


def flat(runs):
    return [(run.instance, item) for run in runs for item in range(run.first, run.end)]


@given(COUNTS, PARALLELISM)
def test_the_even_split_deals_every_item_once_in_order_in_sizes_within_one(counts, after):
    shares = [flat(even_share(counts, index, after)) for index in range(after)]
    assert [place for share in shares for place in share] == flat(all_items(counts))
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True), "the larger ones come first"


@given(COUNTS)
def test_a_share_has_no_empty_runs(counts):
    for index in range(len(counts) + 1):
        runs = even_share(counts, index, len(counts) + 1)
        assert all(run.first < run.end for run in runs)
        assert [run.instance for run in runs] == sorted({run.instance for run in runs})


def test_all_items_leaves_empty_instances_out():
    assert all_items([2, 0, 1]) == [Run(0, 0, 2), Run(2, 0, 1)]


@given(PARALLELISM, PARALLELISM)
def test_every_instance_has_one_family_and_stands_in_it(before, after):
    fewer, more = sorted((before, after))
    families = [relatives(index, before, after) for index in range(fewer)]
    assert sorted(one for family in families for one in family) == list(range(more))
    sizes = [len(family) for family in families]
    assert max(sizes) - min(sizes) <= 1
    for index in range(more):
        family = relatives(index, before, after)
        assert family == families[index % fewer]
        assert index in family
        assert family[0] == index % fewer, "whoever stays is first"
    assert [relatives(i, after, before) for i in range(fewer)] == families, (
        "there and back: the same families"
    )
