"""What the query and the commands on versions do, and what is true after them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

from model.commands import truth as truths
from model.commands.query import KEY_GROUPS, Driver
from model.commands.seen import readable, same
from model.commands.truth import Content, Shape, Space, Truth
from model.commands.world import Outcome, Time, World

DECLARE = f"give the sink table {truths.TOTALS}"


def always(_: World) -> bool:
    return True


def there(world: World) -> bool:
    """Whether the query's namespace has a version, as far as the operator knows."""
    return world.truth.name in world.truth.spaces and world.truth.here.content.event >= 0


def healthy(world: World) -> bool:
    here = world.truth.here
    return there(world) and here.shown and not here.damaged


# -- the query ----------------------------------------------------------------------------------------


def query(
    world: World,
    *,
    name: str = "",
    event: int | None = None,
    lineage: int | None = None,
    first: int | None = None,
    drops: tuple[str, ...] = (),
    derives: bool | None = None,
    shape: Shape | None = None,
    then: Callable[[Driver], object] = lambda _: None,
) -> Outcome:
    """Start the query, give its next batch, and stop it; the driver stays as a zombie.

    A refusal that names a derived table is followed: the query declares it.
    """
    known = world.truth
    event = known.event if event is None else event
    lineage = known.lineage if lineage is None else lineage
    first = known.first if first is None else first
    space = known.spaces.get(name or known.name, Space())
    shape = shape or space.shape or (Shape() if space.is_new else None)
    options: dict[str, Any] = {"key_groups": KEY_GROUPS} if space.is_new and not space.is_begun else {}
    if shape is not None and shape.groups and space.shape is None:
        options["table_key_groups"] = {"ref": shape.groups}

    def run() -> None:
        driver = Driver.opened(world.wal, world.urls, name or known.name, lineage, **options)
        declares = world.truth.derives if derives is None else derives
        driver.batch(event - first, event, shape, drops=drops, derives=declares)
        then(driver)
        world.drivers = (*world.drivers[-1:], driver)

    return _declared(world, lambda: world.attempt(run)) if derives is None else world.attempt(run)


def _declared(world: World, call: Callable[[], Outcome]) -> Outcome:
    """Call; if the refusal names a derived table that the program does not declare, declare it, and again."""
    outcome = call()
    if DECLARE not in outcome.text or world.truth.derives:
        return outcome
    world.truths = tuple(each._replace(derives=True) for each in world.truths)
    return call()


def batched(truth: Truth, world: World, _: Outcome) -> Truth:
    return truths.batch(truth, Time.us)


def dropped(truth: Truth, world: World, _: Outcome, *tables: str) -> Truth:
    here, event = truth.here, truth.event
    if truths.is_replay(truth):
        return truths.batch(truth, Time.us)
    content = here.content.without(*tables)._replace(event=event)
    shape = None if "ref" in tables else here.shape
    changed = {"content": content, "shape": shape, "event": event, "generation": 0, "lineage": truth.lineage}
    return truth._replace(event=event + 1).with_space(truth.name, shown=True, **changed)


def derived(truth: Truth, world: World, outcome: Outcome) -> Truth:
    return batched(truth._replace(derives=True), world, outcome)


def underived(truth: Truth, world: World, outcome: Outcome) -> Truth:
    after = dropped(truth, world, outcome, truths.TOTALS)
    return after._replace(derives=truths.is_replay(truth))


OTHER_GROUPS, OTHER_KEY = Shape("string", "n", 1), Shape("int", "m")
"""The forms in which a dropped table is made again."""


def may_remake(world: World) -> bool:
    return healthy(world) and world.truth.here.shape is None


def remade(truth: Truth, shape: Shape) -> Truth:
    """A batch that writes ``ref`` in another form, unless that batch was decided before."""
    if not truths.is_replay(truth):
        truth = truth.with_space(truth.name, shape=shape)
    return truths.batch(truth, Time.us)


def load(world: World, *, replace: bool) -> Outcome:
    known = world.truth
    shape = known.here.shape

    def run() -> None:
        driver = Driver.opened(world.wal, world.urls, known.name, None)
        token, derives = f"load-{known.loads}", world.truth.derives
        driver.load(token, shape or Shape(), known.loads, replace=replace, derives=derives)

    return _declared(world, lambda: world.attempt(run))


def loaded(truth: Truth, _: World, __: Outcome, *, replace: bool) -> Truth:
    here = truths.built(truth, Time.us).here
    shape = here.shape or Shape()
    key, row = shape.row("y" if replace else "x", truth.loads)
    content = here.content.with_rows("ref", {key: row}, replace=replace)
    truth, content = truth._replace(loads=truth.loads + 1), content.recounted(shape, derives=truth.derives)
    return truth.with_space(truth.name, content=content, shape=shape, shown=True)


def zombie(world: World) -> Outcome:
    """Let the driver before the last one commit its next batch, under the name that it had."""
    driver, known = world.drivers[0].copy(), world.truth
    at = driver.coordinator
    decided = at.folded.last_batch
    batch_id = 0 if decided is None else decided[1] + 1
    event = batch_id + known.first
    space = known.spaces.get(at.endpoints.namespace, Space())
    outcome = world.attempt(lambda: driver.batch(batch_id, event, space.shape, derives=known.derives))
    return dataclasses.replace(outcome, json=event)


def after_zombie(truth: Truth, _: World, outcome: Outcome) -> Truth:
    """A zombie that owns the newest epoch is the query's driver; a batch that was decided is no version."""
    after = truths.batch(truth._replace(event=outcome.json), Time.us)
    return after._replace(event=max(truth.event, after.event))


# -- versions -----------------------------------------------------------------------------------------


def older(world: World) -> int:
    """The newest version that readers had before the visible one; 0: none, or its content is not known."""
    known = world.truth.here.versions
    numbers = sorted(number for uuid, number in known if uuid == world.uuid_of(world.truth.name))
    return numbers[-2] if len(numbers) > 1 else 0


def restored(truth: Truth, world: World, _: Outcome, *, reprocess: bool = False) -> Truth:
    here, at = truth.here, (world.uuid_of(truth.name), older(world))
    content, shape = here.versions.get(at) or world.truth.here.versions[at]  # what readers saw is a fact
    emptied: dict[str, dict[Any, Any]] = {name: {} for name in here.content.tables}  # and not dropped
    emptied.pop(truths.TOTALS, None)  # that one is dropped
    content = content._replace(tables={**emptied, **content.tables})
    truth = truth.with_space(truth.name, content=content, shape=shape or here.shape, shown=True)
    if not reprocess:
        return truth
    truth = truth._replace(event=content.event + 1)
    return truth.with_space(
        truth.name, generation=here.generation + 1, event=content.event, undone=max(here.undone, here.event)
    )


def exported(truth: Truth, world: World, outcome: Outcome) -> Truth:
    number = json.loads(outcome.json)["version"]
    here, at = truth.here, (world.uuid_of(truth.name), number)
    content, shape = here.versions.get(at, (here.content, here.shape))
    shown = readable(world, truth.name)
    if shown is not None and number in shown[1]:
        if at not in here.versions and here.before is not None and same(here.before, shown[1][number]):
            content = here.before  # a command was killed, and its version is not visible yet
        content = content.alive(shown[1][number][0])  # an export has no expired rows
    folder = f"export-{len(truth.exports)}"
    return truth._replace(exports=(*truth.exports, (folder, content, shape)))


def imported(truth: Truth, *__: object) -> Truth:
    _, content, shape = truth.exports[-1]
    here = truth.here
    tables = {**here.content.tables, **content.tables}
    dues = content.dues if "open" in content.tables else here.content.dues
    merged = Content(tables, dues, here.content.event).recounted(shape or here.shape, derives=False)
    truth = truth._replace(loads=truth.loads + 1)
    return truth.with_space(truth.name, content=merged, shape=shape or here.shape, shown=True)


def rename_of(truth: Truth) -> tuple[str, str]:
    """Return the name of the column of ``ref``, and the next one."""
    column = truth.here.form.column
    return column, f"{column}x"


def renamed(truth: Truth, _: World, __: Outcome) -> Truth:
    here = truth.here
    if truth.here.shape is None:
        return truth  # it is not so: the table was there
    old, new = rename_of(truth)
    rows = {
        key: ({new if name == old else name: value for name, value in row.items()}, until)
        for key, (row, until) in here.content.tables.get("ref", {}).items()
    }
    content = here.content._replace(tables={**here.content.tables, "ref": rows})
    return truth.with_space(truth.name, content=content, shape=here.form._replace(column=new), shown=True)


def widened(truth: Truth, world: World, _: Outcome) -> Truth:
    return remade(truth, truth.here.form._replace(more=True))


def trim(world: World) -> Outcome:
    Time.us += 9_000_000_000
    return query(world, then=lambda driver: driver.trim())
