"""Types of columns, by their name in Spark: what is read from JSON, and the Python and Arrow value of it.

A ``json`` value is the object that Spark's ``to_json`` writes with the options named in
docs/storage-format.md:

    type                                    in JSON                              in Python
    string, char, varchar, interval         a string                             str
    tinyint, smallint, int, bigint          a number                             int
    float, double                           a number; NaN, Infinity as strings   float
    decimal(p,s)                            a number, also 1.000E-7              Decimal
    boolean                                 true, false                          bool
    date                                    "2023-01-02"                         date
    timestamp                               "2023-01-02T03:04:05.000000Z"        datetime in UTC
    timestamp_ntz                           "2023-01-02T03:04:05.000000"         naive datetime
    binary                                  base64                               bytes
    array, struct                           an array, an object                  list, dict
    map                                     an object                            dict

The keys of an object are always text: those of a map have the form of a value of their type, numbers
and booleans as text. Before format 2, dates were days and timestamps microseconds since 1970: both
forms are read. Maps with keys of other types lose them on the way and are refused.

Every other spelling is refused, as by the readers in Go and Java: ``conformance/vectors/values.json``.
Pure functions only.
"""

from __future__ import annotations

import binascii
import datetime
import decimal
import itertools
import math
import re
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import msgspec

from tidegate.base.extras import pa
from tidegate.errors import ConfigError
from tidegate.keys.groups import EPOCH, exact_decimal

Mend = Callable[[Any], Any]
"""Converts msgspec's result to the Python value; never called with None."""


class Kind(NamedTuple):
    """A type: msgspec's type to read, the Arrow type's builder, and the conversion after reading, if any."""

    reads: Any
    arrow_type: Callable[[], Any]
    mend: Mend | None = None

    @property
    def arrow(self) -> Any:
        return self.arrow_type()


_WHOLE = r"-?(?:0|[1-9][0-9]*)"
_NUMBER = rf"{_WHOLE}(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
_matches_whole = re.compile(_WHOLE).fullmatch
_matches_number = re.compile(_NUMBER).fullmatch
"""JSON's numbers: Python reads more, as in ``01``, ``1_0``, ``nan`` and the digits of other scripts."""
_SECONDS = "[0-9]{4}-[0-9]{2}-[0-9]{2}T(?:[01][0-9]|2[0-3]):[0-9]{2}:[0-9]{2}(?:[.][0-9]{1,6})?"
SECOND_END = len("2013-01-01T10:00:00")
_NO_NUMBERS = ("NaN", "Infinity", "-Infinity")
FLOAT_END = 2.0**128 - 2.0**103
"""The least number that no 32-bit float is near: above the largest one by half a step."""
EXPONENT_MAX = 999
"""The largest exponent, up and down, of a decimal's text."""


def json_values(reads: Any) -> Any:
    """Return a decoder of stored JSON: a decimal's number is an int or a Decimal, never text."""
    return msgspec.json.Decoder(reads, float_hook=_decimal_in)


def _decimal_in(text: str) -> decimal.Decimal:
    """Return the number of JSON's text. Raises: ValueError: its exponent is beyond all that are written."""
    _, _, exponent = text.lower().partition("e")
    if exponent and (len(exponent) > 8 or abs(int(exponent)) > EXPONENT_MAX):
        raise ValueError(f"not exactly one of decimal: an exponent beyond {EXPONENT_MAX}")
    return decimal.Decimal(text)


def _double_of(value: float | str) -> float:
    return float(value)


def _float_of(value: float | str) -> float:
    """Convert to a float. Raises: ValueError: it is beyond the range of 32 bits."""
    number = float(value)
    if abs(number) >= FLOAT_END and value not in _NO_NUMBERS:
        raise ValueError("a number beyond the range of float")
    return number


def _decimal_of(precision: int, scale: int) -> Mend:
    """Return a conversion that adds all digits of the scale, and refuses other numbers. Zero has no sign.

    Arrow ends the process at 1E-999999999.
    """

    def checked(number: object) -> decimal.Decimal:
        if not isinstance(number, int | decimal.Decimal) or isinstance(number, bool):
            raise ValueError("no number")  # noqa: TRY004 - a stored value that does not fit
        try:
            exact = exact_decimal(decimal.Decimal(number), precision, scale)
        except decimal.DecimalException:
            raise ValueError(f"a number that is not exactly one of decimal({precision},{scale})") from None
        return exact or exact.copy_abs()

    return checked


def _bytes_of(text: str) -> bytes:
    """Convert from base64 as it is written: padded, on one line, spare bits zero. Raises: ValueError."""
    content = binascii.a2b_base64(text)
    if binascii.b2a_base64(content, newline=False) != text.encode():
        raise ValueError("no base64")
    return content


def _time_of(zone: datetime.timezone | None) -> Mend:
    """Return the conversion of a time's text: in UTC it ends with Z, a wall clock's has no zone."""
    fits = re.compile(_SECONDS + "Z" * (zone is not None)).fullmatch

    def convert(text: str) -> Any:
        if fits(text) is None:
            raise ValueError("no time as it is written")
        if len(text) < SECOND_END + 7:  # Python 3.10 reads fractions of 3 and 6 digits alone
            text = f"{text[:SECOND_END]}.{text[SECOND_END + 1 :].removesuffix('Z'):0<6}"
        return datetime.datetime.fromisoformat(text[: SECOND_END + 7]).replace(tzinfo=zone)

    return convert


def _key_of(fits: Callable[[str], object], of_text: Mend) -> Mend:
    """Return the conversion of a map's key from the texts that fit. Raises: ValueError: one does not."""

    def convert(text: str) -> Any:
        if not fits(text):
            raise ValueError("a map's key that is not of its type")
        return of_text(text)

    return convert


def _whole_key(bits: int) -> Mend:
    most = 2 ** (bits - 1)
    return _key_of(lambda text: _matches_whole(text) and len(text) <= 20 and -most <= int(text) < most, int)


def _float_key(end: float) -> Mend:
    def fits(text: str) -> bool:
        return text in _NO_NUMBERS or (_matches_number(text) is not None and abs(float(text)) < end)

    return _key_of(fits, float)


def _time_key(of_text: Mend, of_number: Mend) -> Mend:
    """Return the conversion of a map's key that is a date or time: its text, or a whole number since 1970."""

    def convert(text: str) -> Any:
        return of_number(int(text)) if _matches_whole(text) and len(text) <= 20 else of_text(text)

    return convert


def _date_of_days(days: int) -> datetime.date:
    return EPOCH.date() + datetime.timedelta(days=days)


def _timestamp_of_us(us: int) -> datetime.datetime:
    return EPOCH + datetime.timedelta(microseconds=us)


def _naive_of_us(us: int) -> datetime.datetime:
    return _timestamp_of_us(us).replace(tzinfo=None)


_INSTANT, _WALL_CLOCK = _time_of(datetime.timezone.utc), _time_of(None)

_FLOAT = float | Literal["NaN", "Infinity", "-Infinity"]


def _whole(bits: int) -> Any:
    return Annotated[int, msgspec.Meta(ge=-(2 ** (bits - 1)), le=2 ** (bits - 1) - 1)]


def _arrow(name: str, *arguments: str) -> Callable[[], Any]:
    """Return the builder of an Arrow type."""
    return lambda: getattr(pa, name)(*arguments)


SIMPLE: dict[str, Kind] = {
    "string": Kind(str, _arrow("string")),
    "binary": Kind(str, _arrow("binary"), _bytes_of),
    "boolean": Kind(bool, _arrow("bool_")),
    "tinyint": Kind(_whole(8), _arrow("int8")),
    "smallint": Kind(_whole(16), _arrow("int16")),
    "int": Kind(_whole(32), _arrow("int32")),
    "bigint": Kind(_whole(64), _arrow("int64")),
    "float": Kind(_FLOAT, _arrow("float32"), _float_of),
    "double": Kind(_FLOAT, _arrow("float64"), _double_of),
    "date": Kind(datetime.date, _arrow("date32")),
    "timestamp": Kind(str, _arrow("timestamp", "us", "UTC"), _INSTANT),
    "timestamp_ntz": Kind(str, _arrow("timestamp", "us"), _WALL_CLOCK),
    "void": Kind(type(None), _arrow("null")),
}
"""Types without parameters."""

KEYS_OF_MAPS: dict[str, Mend] = {
    "string": str,
    "boolean": _key_of(("true", "false").__contains__, "true".__eq__),
    "tinyint": _whole_key(8),
    "smallint": _whole_key(16),
    "int": _whole_key(32),
    "bigint": _whole_key(64),
    "float": _float_key(FLOAT_END),
    "double": _float_key(math.inf),
    "decimal": _key_of(_matches_number, _decimal_in),
    "date": _time_key(lambda text: msgspec.convert(text, type=datetime.date), _date_of_days),
    "timestamp": _time_key(_INSTANT, _timestamp_of_us),
    "timestamp_ntz": _time_key(_WALL_CLOCK, _naive_of_us),
}
"""The conversions of the text of a map's key to its value."""

NESTED_MAX = 100
"""The deepest nesting of arrays, maps and structs: their readers are recursive."""


def kind_of(name: str) -> Kind:
    """Parse a Spark type name, nested or not. Raises: ConfigError: it is unknown, or nested too deeply."""
    depths = itertools.accumulate((c == "<") - (c == ">") for c in name)
    if max(depths, default=0) > NESTED_MAX:
        raise ConfigError(
            f"{name[:60]}... is nested more than {NESTED_MAX} levels deep; make a string of its inner part"
        )
    try:
        kind, rest = _read_type(name, name)
    except RecursionError:
        raise _unknown(name[:200]) from None
    if rest:
        raise _unknown(name)
    return kind


def _unknown(name: str) -> ConfigError:
    return ConfigError(
        f"{name} is not a type that a value column may have: use {', '.join(SIMPLE)}, decimal(p,s), char,"
        " varchar, intervals, and array, struct and map of them (map keys: no binary, no nested ones);"
        " cast others to string or binary"
    )


def _read_type(text: str, whole: str) -> tuple[Kind, str]:
    """Parse the type at the start of the text; return it and the rest of the text."""
    end = next((i for i, c in enumerate(text) if c in "<,>("), len(text))
    word, rest = text[:end].strip(), text[end:]
    match word:
        case "decimal":
            arguments, rest = _read_arguments(rest, whole)
            if len(arguments) != 2 or not 1 <= arguments[0] <= 38 or arguments[1] > 38:
                raise _unknown(whole)
            return Kind(Any, lambda: pa.decimal128(*arguments), _decimal_of(*arguments)), rest
        case "char" | "varchar":
            _, rest = _read_arguments(rest, whole)
            return SIMPLE["string"], rest
        case "array":
            element, rest = _read_type(_after(rest, "<", whole), whole)
            return _array(element), _after(rest, ">", whole)
        case "map":
            return _read_map(rest, whole)
        case "struct":
            return _read_struct(rest, whole)
        case _ if word in SIMPLE:
            return SIMPLE[word], rest
        case _ if word.startswith(("interval ", "string collate ")):
            return SIMPLE["string"], rest
        case _:
            raise _unknown(whole)


def _after(text: str, mark: str, whole: str) -> str:
    if not text.startswith(mark):
        raise _unknown(whole)
    return text[1:]


def _read_arguments(text: str, whole: str) -> tuple[list[int], str]:
    inside, closed, rest = _after(text, "(", whole).partition(")")
    parts = inside.split(",")
    if not closed or not all(part.strip().isdecimal() for part in parts):
        raise _unknown(whole)
    return [int(part) for part in parts], rest


def _read_map(rest: str, whole: str) -> tuple[Kind, str]:
    inside = _after(rest, "<", whole)
    key, rest = _read_type(inside, whole)
    name = inside[: len(inside) - len(rest)].partition("(")[0].strip()
    if name in ("char", "varchar") or name.startswith("string collate "):
        name = "string"
    if name not in KEYS_OF_MAPS:
        raise _unknown(whole)
    value, rest = _read_type(_after(rest, ",", whole), whole)
    mend_key = KEYS_OF_MAPS[name]
    if name == "decimal" and (fits := key.mend) is not None:
        return _map(key, lambda text: fits(mend_key(text)), value), _after(rest, ">", whole)
    return _map(key, mend_key, value), _after(rest, ">", whole)


def _read_struct(rest: str, whole: str) -> tuple[Kind, str]:
    rest, fields = _after(rest, "<", whole), {}
    while not rest.startswith(">"):
        name, colon, rest = rest.partition(":")
        if not colon:
            raise _unknown(whole)
        fields[name], rest = _read_type(rest, whole)
        if rest.startswith(","):
            rest = rest[1:]
        elif not rest.startswith(">"):
            raise _unknown(whole)
    return _struct(fields), rest[1:]


def _array(element: Kind) -> Kind:
    mend = element.mend

    def mend_all(values: list[Any]) -> list[Any]:
        return values if mend is None else [None if value is None else mend(value) for value in values]

    return Kind(list[element.reads | None], lambda: pa.list_(element.arrow), mend and mend_all)  # type: ignore[name-defined]


def _map(key: Kind, mend_key: Mend, value: Kind) -> Kind:
    mend = value.mend or (lambda entries: entries)

    def mend_all(entries: dict[str, Any]) -> dict[Any, Any]:
        return {mend_key(k): None if v is None else mend(v) for k, v in entries.items()}

    return Kind(dict[str, value.reads | None], lambda: pa.map_(key.arrow, value.arrow), mend_all)  # type: ignore[name-defined]


def object_of(fields: dict[str, Any]) -> Any:
    """Return msgspec's type for a JSON object with these fields, which may be null or missing.

    Raises: ConfigError: it cannot read a field of such a name.
    """
    typed_dict: Any = TypedDict
    reads = typed_dict("Row", {name: reader | None for name, reader in fields.items()}, total=False)
    _check_found(fields, reads)
    return reads


def _struct(fields: dict[str, Kind]) -> Kind:
    reads = object_of({name: kind.reads for name, kind in fields.items()})
    mends = [(name, kind.mend) for name, kind in fields.items()]

    def mend_all(row: dict[str, Any]) -> dict[str, Any]:
        return {name: _mended(row.get(name), mend) for name, mend in mends}

    return Kind(reads, lambda: pa.struct([(name, kind.arrow) for name, kind in fields.items()]), mend_all)


def _check_found(names: Iterable[str], reads: Any) -> None:
    """Raise ConfigError if msgspec cannot find some of these field names.

    It finds a name beyond ASCII only if this very text was encoded before (its pull request 1126).
    Otherwise it skips the field, which then reads as None.
    """
    nulls = msgspec.json.encode(dict.fromkeys(names))
    if lost := dict.fromkeys(names).keys() - msgspec.json.decode(nulls, type=reads).keys():
        msg = f"msgspec {msgspec.__version__} cannot read columns named {sorted(lost)}: use another release"
        raise ConfigError(msg)


def _mended(value: Any, mend: Mend | None) -> Any:
    return value if value is None or mend is None else mend(value)
