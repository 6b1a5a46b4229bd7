"""Calls of a user's function in a task: under a deadline, with ``emit``, every failure as one error.

No pyspark is imported here.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar

from tidegate.errors import BadRecordError, FunctionError
from tidegate.keys.groups import encode_key
from tidegate.spark.state.call_deadline import Deadline, Overdue
from tidegate.spark.state.output_rows import OutputRows
from tidegate.values.decode import values_of
from tidegate.values.encode import encoder_of, shown
from tidegate.wal.record import TableSchema
from tidegate.wal.staging.spec import StageSpec
from tidegate.wal.value_flags import DELETE, VALUE

TEXT_MAX = 1_000
FRAMES_MAX = 4
_HERE = __file__.rpartition("/")[0] + "/"
"""The folder whose frames in a traceback are not the function's."""
ADVICE = "nothing was decided; mend the function, then restart the query"

Emit = Callable[[str, Any, Any], None]
Migrate = Callable[[Any, int], Any]
"""``migrate(state, version) -> state of the call's version``; see ``Transaction.update``."""
Where = Callable[[], str]
"""Describes the current work, for messages: called only when there is one."""
One = TypeVar("One")


class UdfRunner:
    """A runner of functions, one call after the other. ``outputs`` are the tables that they may emit to.

    ``fault`` returns an error of the source of the functions' rows.
    """

    def __init__(
        self,
        spec: StageSpec,
        outputs: Mapping[str, TableSchema],
        output: OutputRows,
        deadline: Deadline,
        fault: Callable[[], BaseException | None],
    ) -> None:
        self._spec, self._output, self._deadline, self._fault = spec, output, deadline, fault
        self._outputs = {
            name: (spec.tables.index(name), schema.key_types, encoder_of(schema))
            for name, schema in outputs.items()
        }
        self._where: Where = str
        self._name = ""
        self._refused: BadRecordError | FunctionError | None = None
        self._in_call = False

    def call(self, where: Where, fn: Callable[..., Any], *arguments: Any) -> Any:
        """Return the function's result. Earlier errors in it or below it take precedence.

        Raises: FunctionError, it raised, took too long, or emitted to a table that is not one of
        the outputs; BadRecordError, an emitted row does not fit its table, or a row was refused.
        """
        self._where, self._name = where, name_of(fn)
        self._refused, self._in_call = None, True
        raised: BaseException | None = None
        returned = None
        try:
            self._deadline.begin()
            try:
                returned = fn(*arguments)
            finally:
                self._deadline.end()
        except (KeyboardInterrupt, GeneratorExit):  # not the function's: this process is being ended
            raise
        except BaseException as error:  # noqa: BLE001 - whatever a function may raise, CancelledError too
            self._deadline.end()
            raised = error
        self._in_call = False
        if (fault := self._fault()) is not None:
            raise fault
        if self._refused is not None:
            raise self._refused
        if self._deadline.passed:
            place = _places(raised) if isinstance(raised, Overdue) else ""
            raise FunctionError(
                f"{where()}: {self._name} did not return within function_deadline_s,"
                f" {self._deadline.seconds:g} s{place}; nothing was decided; mend the function or raise the"
                " deadline, then restart the query"
            )
        if raised is not None:
            raise FunctionError(f"{where()}: {self._name} raised {_described(raised)}; {ADVICE}")
        return returned

    def refuse(self, error: BadRecordError) -> BadRecordError:
        """Refuse a row that the function requested: the batch fails, even if the function catches
        the error.
        """
        self._refused = self._refused or error
        return error

    # -- outputs ----------------------------------------------------------------------------------

    def emit(self, table: str, key: Any, value: Any) -> None:
        """The function's ``emit``. A refusal fails the batch, even if the function catches it."""
        try:
            if not self._in_call:
                raise FunctionError(
                    f"{self._where()}: emit was called after {self._name} had returned; {ADVICE}"
                )
            self._emit(table, key, value)
        except (BadRecordError, FunctionError) as error:
            self._refused = self._refused or error
            raise

    def _emit(self, table: str, key: Any, value: Any) -> None:
        if table not in self._outputs:
            outputs = ", ".join(sorted(self._outputs)) or "none"
            raise FunctionError(
                f"{self._where()}: {self._name} emits to {table!r}, which is not one of its outputs"
                f" ({outputs}); nothing was decided; name it in outputs="
            )
        index, key_types, encoder = self._outputs[table]

        def where() -> str:
            return f"{self._where()}: the row that {self._name} emits to table {table}"

        def where_key() -> str:
            return f"{where()}, key {shown(key)}"

        try:
            parts = key if len(key_types) > 1 and isinstance(key, tuple | list) else (key,)
            stored_key = encode_key(parts, key_types)
            stored = DELETE if value is None else VALUE + encoder.encode(value)
        except BadRecordError as error:
            raise BadRecordError(f"{where_key()}: {error}; {ADVICE}") from None
        check_size(where, "key", "key", stored_key, self._spec)
        check_size(where_key, "value", "value", stored[1:], self._spec)
        try:
            self._output.add(index, stored_key, stored)
        except FunctionError as error:
            raise FunctionError(f"{self._where()}, {self._name}: {error}; nothing was decided") from None


class Source(Generic[One]):
    """The iterator that a function reads.

    The wait for it is not the function's time, and an error of the source is kept as ``fault``,
    whatever the function does with it.
    """

    def __init__(self, items: Iterator[One], waiting: Callable[[], AbstractContextManager[None]]) -> None:
        self._items, self._waiting = items, waiting
        self.fault: BaseException | None = None

    def __iter__(self) -> Iterator[One]:
        return self

    def __next__(self) -> One:
        try:
            with self._waiting():
                return next(self._items)
        except StopIteration:
            raise
        except BaseException as error:
            self.fault = error
            raise


def check_size(where: Where, what: str, option: str, content: bytes, spec: StageSpec) -> None:
    """Raise BadRecordError if these bytes are too many for a key or a value, as ``option`` says."""
    most = spec.bytes_max(option)
    if len(content) > most:
        raise BadRecordError(
            f"{where()}: the {what} takes {len(content)} bytes, {most} are allowed; nothing was decided;"
            f" {spec.size_advice(option)}"
        )


def name_of(fn: object) -> str:
    """Return a function's name, for messages."""
    return getattr(fn, "__name__", type(fn).__name__)


def migrated(
    calls: UdfRunner, where: Where, migrate: Migrate | None, state: Any, version: int, schema: TableSchema
) -> Any:
    """Return a state of an older version as the schema's, in the form in which readers get it.

    Raises: FunctionError, BadRecordError: the function or its result is refused.
    """
    assert migrate is not None, "a call without it is refused before the batch"

    def where_migrated() -> str:
        return f"{where()}, state of version {version}"

    returned = calls.call(where_migrated, migrate, state, version)
    if returned is None:
        return None
    try:
        return values_of(schema).decode(encoder_of(schema).encode(returned))
    except BadRecordError as error:
        raise BadRecordError(
            f"{where_migrated()}: {name_of(migrate)} returned a state that is none of version"
            f" {schema.version}: {error}; {ADVICE}"
        ) from None


# -- messages for errors of a function ------------------------------------------------------------


def _described(error: BaseException) -> str:
    """Describe an exception on one line: its message, its origin, and its cause."""
    text = f"{_text_of(error)}{_places(error)}"
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return text if cause is None else f"{text}, caused by {_text_of(cause)}"


def _text_of(error: BaseException) -> str:
    try:
        text = " ".join(str(error).split())
    except Exception:  # noqa: BLE001 - an exception without a usable message is still reported
        text = "(its message cannot be shown)"
    return f"{type(error).__name__}: {text[:TEXT_MAX]}" if text else type(error).__name__


def _places(error: BaseException) -> str:
    """Return the last frames in the function's own code, the outermost first."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(_HERE)]
    places = ", ".join(f"{f.filename}:{f.lineno} in {f.name}" for f in frames[-FRAMES_MAX:])
    return f" ({places})" if places else ""
