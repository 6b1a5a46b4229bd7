"""Key bytes, key groups and ranges: pinned vectors (they may never change), round trips, both splits."""

import datetime
import decimal
import string
import zoneinfo

import pyarrow as pa
import pytest
import xxhash
from hypothesis import example, given
from hypothesis import strategies as st

from tidegate.errors import BadRecordError, ConfigError, CorruptError
from tidegate.keys.columns import key_columns
from tidegate.keys.groups import (
    KEY_GROUPS_MAX,
    check_key_groups,
    decimal_parts,
    decode_key,
    encode_key,
    groups_of,
    key_group,
    key_groups_for,
    shares,
    task_of,
)
from tidegate.wal.record import Column


def heron_task_of(group, parallelism, key_groups):
    """The task in Heron's split: the floor share for each task, the overflow to the first ones."""
    share, overflow = divmod(key_groups, parallelism)
    in_fat_tasks = overflow * (share + 1)
    if group < in_fat_tasks:
        return group // (share + 1)
    return overflow + (group - in_fat_tasks) // share


def heron_groups_of(task, parallelism, key_groups):
    """The key groups of a task in Heron's split, inverting ``heron_task_of``."""
    share, overflow = divmod(key_groups, parallelism)
    first = task * share + min(task, overflow)
    return range(first, first + share + (1 if task < overflow else 0))


D = decimal.Decimal
UTC = datetime.timezone.utc
SPLITS = [(task_of, groups_of), (heron_task_of, heron_groups_of)]
SIZES = st.tuples(st.integers(1, 600), st.integers(1, 700))

# -- hash -------------------------------------------------------------------------------------


def test_the_hash_is_sparks():
    """Spark 4: SELECT xxhash64(CAST('abc' AS BINARY)) is this number; it is signed there."""
    spark = 1423657621850124518
    assert xxhash.xxh64_intdigest(b"abc", seed=42) == spark
    for key_groups in (1, 2, 7, 128, 1024, KEY_GROUPS_MAX):
        assert key_group(b"abc", key_groups) == spark % key_groups


@pytest.mark.parametrize(
    "key,key_groups,group",
    [
        (b"abc", 128, 102),
        (b"", 128, 4),
        (b"N14228", 128, 13),
        (b"3:EWR,1:7,", 128, 33),
        (b"\0", 128, 39),
        (bytes(range(256)), 128, 61),
        (b"N14228", 1, 0),
        (b"N14228", 1000, 725),
        (b"N14228", 32768, 653),
    ],
)
def test_the_key_group_of_a_key_never_changes(key, key_groups, group):
    assert key_group(key, key_groups) == group


def test_a_hash_beyond_spark_s_signed_range_is_taken_modulo_as_unsigned():
    """The JVM has to use pmod on the unsigned value; this key's hash has its highest bit set."""
    key = next(b"%d" % i for i in range(100) if xxhash.xxh64_intdigest(b"%d" % i, seed=42) >> 63)
    unsigned = xxhash.xxh64_intdigest(key, seed=42)
    signed = unsigned - 2**64
    assert key_group(key, 1000) == unsigned % 1000
    for power_of_two in (1, 128, 32768):  # here the two readings agree
        assert key_group(key, power_of_two) == signed % power_of_two


@pytest.mark.parametrize("key_groups", [1, 128, KEY_GROUPS_MAX])
def test_a_number_of_key_groups_in_range_is_taken(key_groups):
    assert check_key_groups(key_groups) == key_groups


@pytest.mark.parametrize("key_groups", [-1, 0, KEY_GROUPS_MAX + 1])
def test_a_number_of_key_groups_out_of_range_is_refused(key_groups):
    with pytest.raises(ConfigError, match="1 to 32768"):
        check_key_groups(key_groups)


# -- ranges -------------------------------------------------------------------------------------


@pytest.mark.parametrize("task,groups", SPLITS)
@given(SIZES)
@example((12, 11))
@example((128, 128))
@example((3, 10))
@example((1, 1))
def test_ranges_cover_all_groups_once_in_order_and_fit_the_formula(task, groups, sizes):
    key_groups, parallelism = sizes
    ranges = [groups(index, parallelism, key_groups) for index in range(parallelism)]
    assert [group for one in ranges for group in one] == list(range(key_groups))
    assert all(
        task(group, parallelism, key_groups) == index for index, one in enumerate(ranges) for group in one
    )
    lengths = {len(one) for one in ranges}
    assert max(lengths) - min(lengths) <= 1


@given(SIZES)
def test_the_first_group_of_a_task_is_the_ceiling(sizes):
    key_groups, parallelism = sizes
    for index in range(parallelism):
        first = groups_of(index, parallelism, key_groups).start
        assert first * parallelism >= index * key_groups > (first - 1) * parallelism


@given(st.integers(1, KEY_GROUPS_MAX).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n), st.data())))
@example((KEY_GROUPS_MAX, KEY_GROUPS_MAX, None))
@example((KEY_GROUPS_MAX, KEY_GROUPS_MAX - 1, None))
@example((KEY_GROUPS_MAX, 1, None))
@pytest.mark.parametrize("task,groups", SPLITS)
def test_up_to_the_most_key_groups_the_formulas_are_inverses_and_need_32_bits_only(task, groups, drawn):
    key_groups, parallelism, data = drawn
    some = [0, key_groups // 2, key_groups - 1]
    some += [] if data is None else data.draw(st.lists(st.integers(0, key_groups - 1), max_size=20))
    for group in some:
        index = task(group, parallelism, key_groups)
        assert 0 <= index < parallelism
        assert group in groups(index, parallelism, key_groups)
        assert group * parallelism < 2**31  # whoever computes it in 32 bits, as Flink does, is right too
        assert (index + 1) * key_groups < 2**31
    assert groups(0, parallelism, key_groups).start == 0
    assert groups(parallelism - 1, parallelism, key_groups).stop == key_groups


@given(SIZES)
def test_the_shares_are_those_of_both_splits(sizes):
    key_groups, parallelism = sizes
    if parallelism > key_groups:
        with pytest.raises(ConfigError, match="a task without one"):
            shares(parallelism, key_groups)
        return
    found = shares(parallelism, key_groups)
    for _, groups in SPLITS:
        lengths = sorted(len(groups(index, parallelism, key_groups)) for index in range(parallelism))
        larger = parallelism - found.with_one_more
        assert lengths == [found.smallest] * larger + [found.smallest + 1] * found.with_one_more
        assert found.imbalance == (lengths[-1] - lengths[0]) / lengths[0] <= 1 / (key_groups // parallelism)


@pytest.mark.parametrize(
    "key_groups,parallelism,most,least,with_most,imbalance",
    [(2_000, 900, 3, 2, 200, 0.5), (10_000, 900, 12, 11, 100, 0.091), (2_000, 1_100, 2, 1, 900, 1.0)],
)
def test_herons_figures(key_groups, parallelism, most, least, with_most, imbalance):
    """From the review of its storage: instances 0 to 199 own 3 partitions, 200 to 899 own 2, and so on."""
    lengths = [len(heron_groups_of(index, parallelism, key_groups)) for index in range(parallelism)]
    assert lengths == [most] * with_most + [least] * (parallelism - with_most)
    assert round(shares(parallelism, key_groups).imbalance, 3) == imbalance


def test_both_splits_are_pinned():
    """State lies by key group, but manifests say which instance wrote what: the split may not drift."""
    assert [groups_of(index, 3, 8) for index in range(3)] == [range(3), range(3, 6), range(6, 8)]
    assert [groups_of(index, 5, 8) for index in range(5)] == [
        range(2), range(2, 4), range(4, 5), range(5, 7), range(7, 8)
    ]  # fmt: skip
    assert [heron_groups_of(index, 5, 8) for index in range(5)] == [
        range(2), range(2, 4), range(4, 6), range(6, 7), range(7, 8)
    ]  # fmt: skip


# -- key encoding -------------------------------------------------------------------------------

VECTORS = [
    (["N14228"], ["string"], b"N14228"),
    ([""], ["string"], b""),
    (["Zürich"], ["string"], b"Z\xc3\xbcrich"),
    ([b"\0\xff"], ["binary"], b"\0\xff"),
    ([7], ["int"], b"7"),
    ([-128], ["tinyint"], b"-128"),
    ([0], ["smallint"], b"0"),
    ([2**63 - 1], ["bigint"], b"9223372036854775807"),
    ([-(2**63)], ["bigint"], b"-9223372036854775808"),
    ([True], ["boolean"], b"true"),
    ([False], ["boolean"], b"false"),
    ([datetime.date(2013, 1, 1)], ["date"], b"2013-01-01"),
    ([datetime.date(1, 12, 31)], ["date"], b"0001-12-31"),
    ([datetime.datetime(2026, 11, 21, 10, 0, 0, 7, UTC)], ["timestamp"], b"1795255200000007"),
    ([datetime.datetime(1, 1, 1, tzinfo=UTC)], ["timestamp"], b"-62135596800000000"),
    ([datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999)], ["timestamp_ntz"], b"-1"),  # noqa: DTZ001
    ([datetime.datetime.max], ["timestamp_ntz"], b"253402300799999999"),  # noqa: DTZ901
    ([D("1.5")], ["decimal(10,2)"], b"1.50"),
    ([D("-0.00")], ["decimal(10,2)"], b"0.00"),
    ([D("-1E+3")], ["decimal(10,0)"], b"-1000"),
    ([5], ["decimal(3,1)"], b"5.0"),
    ([D("0.00000001")], ["decimal(38,8)"], b"0.00000001"),
    ([D("9" * 38)], ["decimal(38,0)"], b"9" * 38),
    (["EWR", 7], ["string", "int"], b"3:EWR,1:7,"),
    (["", ""], ["string", "string"], b"0:,0:,"),
    (["1:a,", "b"], ["string", "string"], b"4:1:a,,1:b,"),
    (
        ["ü", True, datetime.date(2013, 1, 1)],
        ["string", "boolean", "date"],
        b"2:\xc3\xbc,4:true,10:2013-01-01,",
    ),
]


@pytest.mark.parametrize("values,types,key", VECTORS)
def test_the_bytes_of_a_key_never_change(values, types, key):
    assert encode_key(values, types) == key
    decoded = decode_key(key, types)
    assert decoded == (values[0] if len(values) == 1 else tuple(values))


def digits(precision, scale):
    most = 10**precision - 1
    return st.integers(-most, most).map(lambda whole: D(whole).scaleb(-scale, decimal.Context(prec=60)))


COLUMN = st.one_of(
    st.tuples(st.just("string"), st.text(max_size=8)),
    st.tuples(st.just("binary"), st.binary(max_size=8)),
    st.tuples(st.just("boolean"), st.booleans()),
    st.tuples(st.just("date"), st.dates()),
    st.tuples(st.just("timestamp"), st.datetimes(timezones=st.just(UTC))),
    st.tuples(st.just("timestamp_ntz"), st.datetimes()),
    st.tuples(st.just("tinyint"), st.integers(-(2**7), 2**7 - 1)),
    st.tuples(st.just("smallint"), st.integers(-(2**15), 2**15 - 1)),
    st.tuples(st.just("int"), st.integers(-(2**31), 2**31 - 1)),
    st.tuples(st.just("bigint"), st.integers(-(2**63), 2**63 - 1)),
    st.tuples(st.just("decimal(5,2)"), digits(5, 2)),
    st.tuples(st.just("decimal(38,18)"), digits(38, 18)),
    st.tuples(st.just("decimal(38,38)"), digits(38, 38)),
)


@given(st.lists(COLUMN, min_size=1, max_size=4))
def test_any_key_comes_back(columns):
    types, values = [kind for kind, _ in columns], [value for _, value in columns]
    decoded = decode_key(encode_key(values, types), types)
    assert decoded == (values[0] if len(values) == 1 else tuple(values))


@given(st.data())
def test_two_keys_of_the_same_columns_never_share_their_bytes(data):
    kinds = data.draw(st.lists(st.sampled_from(["string", "binary"]), min_size=1, max_size=3))
    small = st.text(alphabet="1:,a", max_size=4)
    one, other = (
        [data.draw(small) if kind == "string" else data.draw(small).encode() for kind in kinds]
        for _ in range(2)
    )
    assert (encode_key(one, kinds) == encode_key(other, kinds)) == (one == other)


@given(digits(20, 4))
def test_equal_decimals_have_equal_bytes_however_they_are_written(value):
    written = {value, value.normalize(decimal.Context(prec=60)), D(f"{value:E}")}
    assert len({encode_key([one], ["decimal(20,4)"]) for one in written}) == 1


@pytest.mark.parametrize("kind", ["string", "binary", "boolean", "int", "bigint", "date", "decimal(10,2)"])
def test_a_null_key_is_refused(kind):
    """T43."""
    with pytest.raises(BadRecordError, match=r"None .* is not a value"):
        encode_key([None], [kind])


@pytest.mark.parametrize(
    "value,kind",
    [
        (1.0, "int"),
        (float("nan"), "decimal(10,2)"),
        (float("nan"), "double"),
        (1.5, "double"),
        (True, "int"),
        (True, "decimal(3,0)"),
        (1, "boolean"),
        ("1", "int"),
        (b"a", "string"),
        ("a", "binary"),
        ("2013-01-01", "date"),
        (datetime.datetime(2013, 1, 1), "date"),  # noqa: DTZ001 - what a user may give
        (128, "tinyint"),
        (-129, "tinyint"),
        (2**15, "smallint"),
        (2**31, "int"),
        (2**63, "bigint"),
        (-(2**63) - 1, "bigint"),
        (D("1.001"), "decimal(10,2)"),
        (D("123456789.00"), "decimal(10,2)"),
        (D(10) ** 38, "decimal(38,0)"),
        (D("NaN"), "decimal(10,2)"),
        (D("sNaN"), "decimal(10,2)"),
        (D("Infinity"), "decimal(10,2)"),
        (10**400, "decimal(38,0)"),
        ("a", "timestamp"),
        (1, "timestamp"),
        (datetime.date(2026, 1, 1), "timestamp_ntz"),
        (datetime.datetime(2026, 1, 1), "timestamp"),  # noqa: DTZ001 - what a user may give
        (datetime.datetime(2026, 1, 1, tzinfo=UTC), "timestamp_ntz"),
        (datetime.datetime(1, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=2))), "timestamp"),
    ],
)
def test_a_value_that_is_not_of_its_column_is_refused_by_name(value, kind):
    with pytest.raises(BadRecordError) as caught:
        encode_key([value], [kind])
    assert kind in str(caught.value)


@given(
    st.datetimes(datetime.datetime(2, 1, 1), timezones=st.timezones(), allow_imaginary=False)  # noqa: DTZ001
)
@example(datetime.datetime(2026, 10, 25, 2, 30, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"), fold=1))
def test_an_instant_is_one_key_in_every_time_zone(moment):
    """Also in the hour that a zone has twice."""
    key = encode_key([moment], ["timestamp"])
    assert key == encode_key([moment.astimezone(UTC)], ["timestamp"])
    assert decode_key(key, ["timestamp"]) == moment.astimezone(UTC)


@pytest.mark.parametrize("kind", ["timestamp", "timestamp_ntz"])
@pytest.mark.parametrize("key", [b"07", b"-0", b"+1", b"1_0", b"", b"x", b"253402300800000000"])
def test_a_time_that_is_not_written_as_a_key_is_is_damage(kind, key):
    with pytest.raises(CorruptError):
        decode_key(key, [kind])
    with pytest.raises(ValueError):  # noqa: PT011 - Arrow's has its own words
        key_columns(pa.array([key], pa.binary()), [Column("at", kind)])


@given(st.lists(st.tuples(st.datetimes(timezones=st.just(UTC)), st.datetimes()), min_size=1))
def test_times_in_columns_are_those_of_decode_key(rows):
    kinds = ["timestamp", "timestamp_ntz"]
    keys = pa.array([encode_key(row, kinds) for row in rows], pa.binary())
    columns = key_columns(keys, [Column("at", kinds[0]), Column("wall", kinds[1])])
    assert list(zip(*(values.to_pylist() for _, values in columns), strict=True)) == rows


def test_a_string_that_has_no_utf8_is_refused():
    with pytest.raises(BadRecordError):
        encode_key(["\ud800"], ["string"])


def test_the_decimal_context_of_the_caller_changes_nothing():
    with decimal.localcontext() as context:
        context.prec = 3
        context.rounding = decimal.ROUND_UP
        context.traps[decimal.Inexact] = True
        assert encode_key([D("12345678.90")], ["decimal(10,2)"]) == b"12345678.90"
        assert decode_key(b"12345678.90", ["decimal(10,2)"]) == D("12345678.90")


@pytest.mark.parametrize("values", [[], ["a"], ["a", "b", "c"]])
def test_the_number_of_values_must_fit(values):
    with pytest.raises(BadRecordError, match="2 columns"):
        encode_key(values, ["string", "string"])


@pytest.mark.parametrize(
    "key",
    [
        b"",
        b"3:EWR",
        b"3:EWR,",
        b"9:EWR,1:7,",
        b"x:EWR,1:7,",
        b"3:EWR,1:7,x",
        b"3:EWRx1:7,",
        b"+3:EWR,1:7,",
        b"03:EWR,1:7,",
        b"3:EW\xff,1:7,",
        b"-1:,1:7,",
    ],
)
def test_bytes_that_are_no_key_of_these_columns_are_refused(key):
    with pytest.raises(CorruptError):
        decode_key(key, ["string", "int"])


@given(st.binary(max_size=12) | st.text(string.digits + ":,-", max_size=12).map(str.encode))
def test_hostile_bytes_end_in_an_error_that_says_so(key):
    """T49: keys are read back from stores, which anybody may have written to."""
    for types in (["string", "int"], ["int"], ["date"], ["decimal(5,2)"], ["string"], ["boolean"]):
        try:
            decoded = decode_key(key, types)
        except CorruptError:
            continue
        values = list(decoded) if len(types) > 1 else [decoded]
        if types != ["boolean"] and types[0][:7] != "decimal" and "int" not in types:
            assert encode_key(values, types) == key


@pytest.mark.parametrize("kind,parts", [("decimal(10,2)", (10, 2)), ("decimal(38,0)", (38, 0))])
def test_precision_and_scale_of_a_decimal(kind, parts):
    assert decimal_parts(kind) == parts


@pytest.mark.parametrize("kind", ["int", "string"])
def test_another_type_has_no_scale(kind):
    with pytest.raises(ValueError, match=r"^$"):
        decimal_parts(kind)


@given(st.integers(1, 2 * KEY_GROUPS_MAX))
@example(12)
@example(13)
@example(3_276)
@example(3_277)
def test_a_new_namespace_shares_its_key_groups_evenly(tasks):
    chosen = key_groups_for(tasks)
    assert 128 <= chosen <= KEY_GROUPS_MAX
    assert chosen.bit_count() == 1
    if 10 * tasks < KEY_GROUPS_MAX:
        assert shares(tasks, chosen).imbalance <= 0.1
        assert chosen == 128 or chosen // 2 <= 10 * tasks < chosen
