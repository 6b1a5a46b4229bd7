"""Keys, their bytes, their key groups and the ranges of tasks. Pure functions only.

``key group = xxh64(key bytes, seed 42) mod key_groups``. Spark's ``xxhash64(binary)`` is the same
function (signed there), so the JVM computes it for rows, and any language can for readers.

The task of a key group follows Flink's split (FLINK-3755): ``group * parallelism // key_groups``,
contiguous, sizes within one of each other. docs/decisions/0002 compares it with Heron's.
"""

from __future__ import annotations

import datetime
import decimal
import functools
import re
from collections.abc import Sequence
from typing import NamedTuple, TypeGuard

import xxhash

from tidegate.base.text import brief
from tidegate.errors import BadRecordError, ConfigError, CorruptError

HASH_SEED = 42
KEY_GROUPS_DEFAULT = 128
KEY_GROUPS_MAX = 32_768
IMBALANCE_MAX = 0.1
"""The surplus of a task over another without a warning: a new namespace has ten key groups a task."""

INTEGER_LIMITS = {"tinyint": 2**7, "smallint": 2**15, "int": 2**31, "bigint": 2**63}
"""Types of integer key columns, each with the first value beyond its range."""
TIMES = ("timestamp", "timestamp_ntz")
"""Types of key columns that are microseconds since 1970: an instant in UTC, a wall clock without a zone."""
TIME_LIMITS = (-62_135_596_800_000_000, 253_402_300_800_000_000)
"""The first microsecond of the year 1, and the first after the year 9999: datetimes have these years."""
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
_MICROSECOND = datetime.timedelta(microseconds=1)


def key_group(key: bytes, key_groups: int, stride: int = 1) -> int:
    """Return the key group of a key, 0 <= group < key_groups: of a table with a stride, a multiple of it.

    >>> key_group(b"abc", 128), key_group(b"abc", 128, 32)
    (102, 96)
    """
    group = int(xxhash.xxh64_intdigest(key, seed=HASH_SEED) % key_groups)
    return group - group % stride


def key_group_of_each(keys: Sequence[bytes], key_groups: int, stride: int = 1) -> list[int]:
    """Return the key group of each key, in a third of the time of separate calls of ``key_group``.

    >>> key_group_of_each([b"abc", b"abc"], 128), key_group_of_each([b"abc"], 128, 32)
    ([102, 102], [96])
    """
    digest = xxhash.xxh64_intdigest
    if stride == 1:
        return [digest(key, HASH_SEED) % key_groups for key in keys]
    return [digest(key, HASH_SEED) % key_groups // stride * stride for key in keys]


def key_groups_for(tasks: int) -> int:
    """Return the number of key groups of a new namespace: a power of two, ten or more for each task.

    So the fullest of these tasks has at most 10 % more key groups than the others (Heron's factor). At least
    ``KEY_GROUPS_DEFAULT``, at most ``KEY_GROUPS_MAX``.

    >>> key_groups_for(12), key_groups_for(13), key_groups_for(200)
    (128, 256, 2048)
    """
    return min(KEY_GROUPS_MAX, max(KEY_GROUPS_DEFAULT, 1 << (10 * tasks).bit_length()))


def stride_for(table: str, of_table: int, key_groups: int) -> int:
    """Return the distance between two key groups of a table that has ``of_table`` of the namespace's.

    Raises: ConfigError: ``of_table`` is no divisor of ``key_groups``.
    """
    if key_groups % of_table:
        msg = (
            f"table_key_groups of table {table} is {brief(of_table)}, and the namespace has {key_groups} key"
            f" groups: it must be a divisor of {key_groups}"
        )
        raise ConfigError(msg)
    return key_groups // of_table


def check_key_groups(key_groups: int) -> int:
    if not 1 <= key_groups <= KEY_GROUPS_MAX:
        msg = f"key_groups is {brief(key_groups)}; it must be 1 to {KEY_GROUPS_MAX}"
        raise ConfigError(msg)
    return key_groups


# -- ranges -----------------------------------------------------------------------------------


def task_of(group: int, parallelism: int, key_groups: int) -> int:
    """Return the task that owns a key group (Flink's formula)."""
    return group * parallelism // key_groups


def groups_of(task: int, parallelism: int, key_groups: int) -> range:
    """Return the contiguous key groups that a task owns, inverting ``task_of``.

    The first group of task i is ceil(i * key_groups / parallelism). Empty only when there are more
    tasks than key groups.
    """
    first = -(-task * key_groups // parallelism)
    end = -(-(task + 1) * key_groups // parallelism)
    return range(first, end)


class Shares(NamedTuple):
    """The number of key groups of each of ``parallelism`` tasks; ``with_one_more`` of them have one more."""

    parallelism: int
    smallest: int
    with_one_more: int

    @property
    def imbalance(self) -> float:
        """The surplus of the fullest task over the others, as a share: at most 1 / ``smallest``."""
        return 1 / self.smallest if self.with_one_more else 0.0


def shares(parallelism: int, key_groups: int) -> Shares:
    """Return how evenly key groups are distributed to tasks, the same in Flink's and in Heron's split.

    Heron's own example, 10,000 key groups and 900 tasks, is 12 against 11:

    >>> shares(900, 10_000), round(shares(900, 10_000).imbalance, 3)
    (Shares(parallelism=900, smallest=11, with_one_more=100), 0.091)

    Raises: ConfigError: more tasks than key groups.
    """
    smallest, with_one_more = divmod(key_groups, check_parallelism(parallelism, key_groups))
    return Shares(parallelism, smallest, with_one_more)


def imbalance_of(tasks: int, key_groups: int) -> str:
    """Return how unevenly key groups go to tasks, with numbers and remedies; '' up to ``IMBALANCE_MAX``.

    >>> imbalance_of(12, 128), imbalance_of(30, 256).partition(":")[0]
    ('', 'of 30 tasks 16 have 9 of the 256 key groups, the others 8')
    """
    share = shares(tasks, key_groups)
    if share.imbalance <= IMBALANCE_MAX:
        return ""
    return (
        f"of {tasks} tasks {share.with_one_more} have {share.smallest + 1} of the {key_groups} key groups,"
        f" the others {share.smallest}: {100 * share.imbalance:.0f} % more work for some."
        f" {key_groups_for(tasks)} key groups would do: `tidegate rekey --to NAME --key-groups"
        f" {key_groups_for(tasks)}` moves the namespace while its query runs; or set parallelism to a divisor"
        f" of {key_groups}"
    )


def check_parallelism(parallelism: int, key_groups: int, where: str = "") -> int:
    """Return the parallelism itself. Raises: ConfigError: there are more tasks than key groups."""
    if parallelism > key_groups:
        msg = (
            f"parallelism is {brief(parallelism)}, there are {key_groups:,} key groups{where}: a task without"
            f" one would have nothing to do. Set parallelism to at most {key_groups:,}; or move the namespace"
            " to another number of key groups with `tidegate rekey --to NAME --key-groups N`"
        )
        raise ConfigError(msg)
    return parallelism


# -- key encoding -----------------------------------------------------------------------------


def encode_key(values: Sequence[object], types: Sequence[str]) -> bytes:
    """Encode a key: one value per key column, each of the column's type.

    A single column is its own text: a string its UTF-8, a binary its bytes, an integer its decimal
    digits, a boolean ``true`` or ``false``, a date ``YYYY-MM-DD``, a ``decimal(p,s)`` its digits
    with exactly s of them after the point. A ``timestamp`` (an aware datetime) and a
    ``timestamp_ntz`` (a naive one) are the digits of their microseconds since 1970-01-01, as an
    integer. Several columns are the concatenated netstrings
    (``<length>:<bytes>,``) of their single encodings. docs/storage-format.md has test vectors.

    >>> encode_key(["N14228"], ["string"]), encode_key(["EWR", 7], ["string", "int"])
    (b'N14228', b'3:EWR,1:7,')

    Raises: BadRecordError: a value is null, or not of its column's type.
    """
    if len(values) != len(types):
        msg = f"the key has {len(types)} columns ({', '.join(types)}), {len(values)} values were given"
        raise BadRecordError(msg)
    if len(types) == 1:
        return _encode_one(values[0], types[0])
    parts = [_encode_one(value, kind) for value, kind in zip(values, types, strict=True)]
    return b"".join(b"%d:%b," % (len(part), part) for part in parts)


def decode_key(key: bytes, types: Sequence[str]) -> object:
    """Decode a key, inverting ``encode_key``: one value for one column, a tuple for several.

    Raises: CorruptError: these bytes are no key of these columns, or not as ``encode_key`` writes
    it.
    """
    try:
        if len(types) == 1:
            return _decode_one(key, types[0])
        values, rest = [], key
        for kind in types:
            part, rest = _netstring(rest)
            values.append(_decode_one(part, kind))
        if rest:
            raise ValueError
    except (ValueError, ArithmeticError, BadRecordError) as error:  # not UTF-8, not a number, not a date
        shown = repr(key[:60]) + f"... ({len(key)} bytes)" * (len(key) > 60)
        msg = f"{shown} is not a key of the columns' types, {', '.join(types)}"
        raise CorruptError(msg) from error
    return tuple(values)


def _netstring(content: bytes) -> tuple[bytes, bytes]:
    """Return the first netstring's content, and the rest. Raises: ValueError: there is none."""
    length, _, rest = content.partition(b":")
    end = int(length)
    if length != b"%d" % end or end < 0 or rest[end : end + 1] != b",":
        raise ValueError
    return rest[:end], rest[end + 1 :]


def _encode_one(value: object, kind: str) -> bytes:
    match kind, value:
        case "string", str():
            try:
                return value.encode()
            except UnicodeEncodeError:  # half a surrogate pair
                pass
        case "binary", bytes() | bytearray() | memoryview():
            return bytes(value)
        case "boolean", bool():
            return b"true" if value else b"false"
        case (("tinyint" | "smallint" | "int" | "bigint"), int()) if not isinstance(value, bool):
            if -INTEGER_LIMITS[kind] <= value < INTEGER_LIMITS[kind]:
                return b"%d" % value
        case "date", datetime.date() if not isinstance(value, datetime.datetime):
            return value.isoformat().encode()
        case (("timestamp" | "timestamp_ntz"), datetime.datetime()) if is_time(value):
            return _encode_time(value, kind)
        case _, int() | decimal.Decimal() if kind.startswith("decimal(") and not isinstance(value, bool):
            return _encode_decimal(decimal.Decimal(value), kind)
        case _:
            pass
    msg = f"{brief(value)} ({type(value).__name__}) is not a value of the key column's type, {kind}"
    raise BadRecordError(msg)


def is_time(value: object) -> TypeGuard[datetime.datetime]:
    """Whether it is a datetime of the years 1 to 9999. Of this class are also pandas' NaT and later years."""
    return isinstance(value, datetime.datetime) and 1 <= value.year <= datetime.MAXYEAR


def _encode_time(value: datetime.datetime, kind: str) -> bytes:
    is_aware = value.utcoffset() is not None
    if is_aware != (kind == "timestamp"):
        needs = "a datetime with a time zone" if kind == "timestamp" else "a datetime without a time zone"
        msg = f"{brief(value)} is not a value of the key column's type, {kind}: it takes {needs}"
        raise BadRecordError(msg)
    microseconds = ((value if is_aware else value.replace(tzinfo=EPOCH.tzinfo)) - EPOCH) // _MICROSECOND
    if not TIME_LIMITS[0] <= microseconds < TIME_LIMITS[1]:
        msg = f"{brief(value)} is not of the years 1 to 9999 in UTC, as the key column's type, {kind}, needs"
        raise BadRecordError(msg)
    return b"%d" % microseconds


def _encode_decimal(value: decimal.Decimal, kind: str) -> bytes:
    try:
        exact = exact_decimal(value, *decimal_parts(kind))
    except decimal.DecimalException:
        msg = f"{value} does not fit the key column's type, {kind}"
        raise BadRecordError(msg) from None
    return f"{exact.copy_abs() if exact.is_zero() else exact:f}".encode()


def _decode_one(part: bytes, kind: str) -> object:
    """Decode a value. Raises: ValueError, ArithmeticError: ``_encode_one`` writes this for no value."""
    match kind:
        case "string":
            return part.decode()
        case "binary":
            return part
        case "boolean":
            if part in (b"true", b"false"):
                return part == b"true"
        case "date":
            day = datetime.date.fromisoformat(part.decode())
            if day.isoformat().encode() == part:
                return day
        case "tinyint" | "smallint" | "int" | "bigint":
            number, end = int(part), INTEGER_LIMITS[kind]
            if -end <= number < end and b"%d" % number == part:
                return number
        case "timestamp" | "timestamp_ntz":
            microseconds = int(part)
            if TIME_LIMITS[0] <= microseconds < TIME_LIMITS[1] and b"%d" % microseconds == part:
                moment = EPOCH + microseconds * _MICROSECOND
                return moment if kind == "timestamp" else moment.replace(tzinfo=None)
        case _:
            if decimal_pattern(kind).fullmatch(text := part.decode()):
                return decimal.Decimal(text)
    raise ValueError


@functools.lru_cache(maxsize=256)
def decimal_pattern(kind: str) -> re.Pattern[str]:
    """Match the text of a ``decimal(p,s)`` in a key: zero has no sign. Raises: ValueError: no such type."""
    precision, scale = decimal_parts(kind)
    whole = f"(?:0|[1-9][0-9]{{0,{precision - scale - 1}}})" if precision > scale else "0"
    return re.compile(rf"(?!-[0.]*\Z)-?{whole}" + f"[.][0-9]{{{scale}}}" * (scale > 0))


def exact_decimal(value: decimal.Decimal, precision: int, scale: int) -> decimal.Decimal:
    """Return a number with all digits of its scale.

    Raises: decimal.DecimalException: it is not exactly one of ``decimal(precision,scale)``.
    """
    if not value.is_finite():
        raise decimal.InvalidOperation  # quantize accepts a quiet NaN
    return value.quantize(decimal.Decimal((0, (1,), -scale)), context=_exact_context(precision))


@functools.cache
def _exact_context(precision: int) -> decimal.Context:
    return decimal.Context(prec=precision, traps=[decimal.Inexact, decimal.InvalidOperation])


def decimal_parts(kind: str) -> tuple[int, int]:
    """Return precision and scale of ``decimal(p,s)``. Raises: ValueError: it is no such type."""
    if not kind.startswith("decimal("):
        raise ValueError
    precision, scale = kind.removeprefix("decimal(").removesuffix(")").split(",")
    return int(precision), int(scale)
