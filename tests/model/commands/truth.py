"""What must be visible: plain dictionaries, which each letter changes as its documentation has it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

TIMEOUT_US = 64_000_000
STEP_US = 1_000_000
TOTALS = "totals"
"""The derived table of ``ref``: by its value column, the number of rows and the least key."""
TTL_US = 1_800_000_000
LINEAGES = tuple(f"{number}a1f6b0e-3c55-4c8e-9a57-2f1a0c1d5b11" for number in range(1, 10))

Row = Mapping[str, Any]
Tables = Mapping[str, Mapping[Any, tuple[Row, int]]]
"""By table and key: the row, and when it expires; 0: never."""


class Content(NamedTuple):
    """The rows of a version, with the due times of the keys of ``open``; ``event``: the last batch in it."""

    tables: Tables = MappingProxyType({})
    dues: Mapping[str, int] = MappingProxyType({})
    event: int = -1

    def at(self, decided_us: int) -> dict[str, dict[Any, Row]]:
        """Return the rows that a version of this time shows."""
        return {
            table: {key: row for key, (row, until) in rows.items() if not until or decided_us < until}
            for table, rows in self.tables.items()
        }

    def alive(self, at_us: int) -> Content:
        """Return the content without expired rows: a copy does not have them, whatever its time."""
        tables = {
            table: {key: each for key, each in rows.items() if not each[1] or at_us < each[1]}
            for table, rows in self.tables.items()
        }
        return self._replace(tables=tables)

    def with_rows(self, table: str, rows: dict[Any, Row], *, replace: bool = False) -> Content:
        kept = {} if replace else self.tables.get(table, {})
        return self._replace(
            tables={**self.tables, table: {**kept, **{key: (row, 0) for key, row in rows.items()}}}
        )

    def without(self, *tables: str) -> Content:
        return self._replace(tables={name: rows for name, rows in self.tables.items() if name not in tables})

    @property
    def is_kept(self) -> bool:
        """Whether there is the derived table of ``ref``."""
        return TOTALS in self.tables

    def recounted(self, shape: Shape | None, *, derives: bool) -> Content:
        """Return the content with the derived table of ``ref``, if there is one or the query declares it."""
        if shape is None or not (derives or self.is_kept):
            return self
        groups: dict[Any, list[Any]] = {}
        for key, (row, _) in self.tables["ref"].items():
            if shape.column in row and isinstance(key, str) == (shape.key == "string"):  # else it is not true
                groups.setdefault(row[shape.column], []).append(key)
        totals = {at: ({"rows": len(keys), "least": min(keys)}, 0) for at, keys in groups.items()}
        return self._replace(tables={**self.tables, TOTALS: totals})


class Shape(NamedTuple):
    """The form of table ``ref``: the type of its key, its value column, its number of key groups."""

    key: str = "string"
    column: str = "n"
    groups: int = 0
    more: bool = False

    def row(self, name: str, number: int) -> tuple[Any, Row]:
        """Return the key and the row."""
        key = name if self.key == "string" else sum(map(ord, name))
        return key, {self.column: number, **({"more": number} if self.more else {})}


class Space(NamedTuple):
    """A namespace. ``shape`` None: there is no table ``ref``. ``shown``: readers find the content."""

    content: Content = Content()
    shape: Shape | None = None
    lineage: int = 0
    event: int = -1
    """The last batch that was decided here, whether a restore undid it or not."""
    generation: int = 0
    undone: int = -1
    """The last batch that a rewind has undone."""
    before: Content | None = None
    """What readers may still see of a command that was killed after its decision."""
    shown: bool = True
    is_begun: bool = False
    """Whether an error said that it was made with other key groups: its next query gives no number."""
    time_us: int = 0
    """When the visible version was decided."""
    damaged: str = ""
    """What was lost, so that verify has findings and commands may refuse."""
    moved: str = ""
    copy_of: str = ""
    """The source of an unfinished copy."""
    versions: Mapping[tuple[str, int], tuple[Content, Shape | None]] = MappingProxyType({})
    """By uuid and number: what readers were shown at versions, and must be shown again."""
    past: Mapping[tuple[str, int], tuple[Content, Shape | None]] = MappingProxyType({})
    """The same of versions that readers can no longer have, but for an older copy of the store."""

    @property
    def form(self) -> Shape:
        """The form of ``ref``, which is there."""
        assert self.shape is not None
        return self.shape

    @property
    def last(self) -> int:
        """The last batch that is not given again: after a rewind the last one in the content."""
        return self.content.event if self.generation else self.event

    @property
    def is_new(self) -> bool:
        """Whether its first batch makes it."""
        return self.content.event < 0 and not self.damaged and not self.versions


class Truth(NamedTuple):
    """All namespaces, and what the operator knows: the query's namespace, its checkpoint and stores."""

    spaces: Mapping[str, Space] = MappingProxyType({"n": Space()})
    name: str = "n"
    lineage: int = 0
    first: int = 0
    """The event of batch 0 of the query's checkpoint."""
    firsts: Mapping[int, int] = MappingProxyType({0: 0})
    """The same by checkpoint, of those that were replaced, too."""
    event: int = 0
    """The event of the query's next batch."""
    stores: tuple[str, ...] = ("a",)
    backups: Mapping[str, tuple[Content, Shape | None, int, int, int, int]] = MappingProxyType({})
    """By namespace, of its newest backup: content, shape, event, lineage and first event."""
    exports: tuple[tuple[str, Content, Shape | None], ...] = ()
    loads: int = 0
    derives: bool = False
    """Whether the query declares the derived table."""
    aliases: Mapping[str, str] = MappingProxyType({})

    @property
    def here(self) -> Space:
        return self.spaces[self.name]

    def with_first(self, lineage: int, first: int) -> Truth:
        """Let the query have this checkpoint, whose batch 0 has this event."""
        return self._replace(lineage=lineage, first=first, firsts={**self.firsts, lineage: first})

    def with_space(self, name: str, **changes: Any) -> Truth:
        space = self.spaces.get(name, Space())._replace(**changes)
        return self._replace(spaces={**self.spaces, name: space})

    def without_space(self, name: str) -> Truth:
        return self._replace(spaces={at: space for at, space in self.spaces.items() if at != name})

    def without_source(self, name: str) -> Truth:
        """Let the copies of a namespace belong to none: another namespace of that name is made."""
        spaces = {
            at: space._replace(copy_of="a namespace that is gone") if space.copy_of == name else space
            for at, space in self.spaces.items()
        }
        return self._replace(spaces=spaces)

    def as_known_to(self, before: Truth) -> Truth:
        """Return these facts with the knowledge of an operator who did not see the end of a command."""
        return before._replace(spaces=self.spaces, aliases=self.aliases, loads=self.loads)


def due_us(at_us: int) -> int:
    return -(-(at_us + TIMEOUT_US) // STEP_US) * STEP_US


def after_batch(content: Content, shape: Shape | None, event: int, at_us: int) -> Content:
    """Return the content after a batch: one row in each of some tables, and the keys that timed out.

    Two batches write the same number into ``ref``: a group of the derived table has two rows, or one.
    """
    key = f"k{event % 2}"
    tables = {name: dict(rows) for name, rows in content.tables.items()}
    dues = dict(content.dues)
    opened, closed = tables.setdefault("open", {}), tables.setdefault("closed", {})
    tables.setdefault("seen", {})[str(event)] = ({"n": event}, 0)
    tables.setdefault("brief", {})[f"b{event % 2}"] = ({"n": event}, at_us + TTL_US)
    if shape is not None:
        name, row = shape.row(f"r{(event + 1) % 2}", event // 2)
        tables.setdefault("ref", {})[name] = (row, 0)
    before = opened.get(key, ({"n": 0}, 0))[0]
    opened[key] = ({"n": before["n"] + event + 1}, 0)
    dues[key] = due_us(at_us)
    for other in [name for name, due in dues.items() if due <= at_us and name != key]:
        del dues[other]
        if other in opened:
            closed[other] = opened.pop(other)
    return Content(tables, dues, event)


def builds(truth: Truth) -> bool:
    """Whether the query's next version is one that builds the derived table."""
    content = truth.here.content
    return truth.derives and truth.here.shape is not None and "ref" in content.tables and not content.is_kept


def built(truth: Truth, at_us: int) -> Truth:
    """Let the query build the derived table, if its next version is that one."""
    here = truth.here
    if not builds(truth):
        return truth
    content = here.content.recounted(here.shape, derives=True)
    time_us = max(at_us, here.time_us + 1)
    return truth.with_space(truth.name, content=content, shown=True, before=None, time_us=time_us)


def is_replay(truth: Truth) -> bool:
    """Whether the query's next batch was decided before; after a rewind: and is in the content again."""
    return truth.event <= truth.here.last


def batch(truth: Truth, at_us: int) -> Truth:
    """The query's next batch, or a replay of one that was decided."""
    if truth.here.is_new:  # an alias names a namespace by its uuid, and refuses the new one
        aliases = {alias: at for alias, at in truth.aliases.items() if at != truth.name}
        truth = truth.with_space(truth.name, shape=Shape())._replace(aliases=aliases)
    space, event = truth.here, truth.event
    after = truth._replace(event=event + 1)
    if is_replay(truth):
        return after.with_space(truth.name, shown=True)
    space = built(truth, at_us).here
    content = after_batch(space.content, space.shape, event, max(at_us, space.time_us + 1))
    return after.with_space(
        truth.name,
        content=content.recounted(space.shape, derives=truth.derives),
        event=event,
        generation=0,
        lineage=truth.lineage,
        shown=True,
        before=None,
    )
