"""The assignment of tasks to executors, even and with few moves. Pure functions only.

After Samza's proposal (SAMZA-1554): the executor that had the task before, else another one at the same
location, else the one with the fewest. A task's cache is at its location (its host), so a task that changes
its location has moved.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tidegate.keys.groups import groups_of, task_of


class RanAt(NamedTuple):
    """The place where a task ran: the executor's id, and the location of its cache."""

    executor: str
    location: str


def assign(previous: Sequence[RanAt | None], executors: Mapping[str, str]) -> list[str]:
    """Assign an executor to each task; ``executors`` maps each to its location.

    Every executor gets the same number of tasks, or some one more. Of all such assignments it is one in
    which the most tasks stay at their location, and of those one in which the most stay on their
    executor. ``previous`` None: the task ran nowhere yet. The same input gives the same result.
    """
    names = sorted(executors, key=_by_number)
    if not names:
        return []
    room = _shares(previous, executors, names)
    placed: list[str] = [""] * len(previous)

    def take(task: int, name: str) -> None:
        placed[task], room[name] = name, room[name] - 1

    for task, was in enumerate(previous):
        if was is not None and room.get(was.executor) and executors[was.executor] == was.location:
            take(task, was.executor)
    for task, was in enumerate(previous):
        if was is None or placed[task]:
            continue
        near = [name for name in names if executors[name] == was.location and room[name]]
        if near:
            take(task, max(near, key=room.__getitem__))
    for task in range(len(previous)):
        if not placed[task]:
            take(task, max(names, key=room.__getitem__))
    return placed


def _shares(
    previous: Sequence[RanAt | None], executors: Mapping[str, str], names: Sequence[str]
) -> dict[str, int]:
    """Return each executor's number of tasks: one more for those that then keep one more task."""
    share, more = divmod(len(previous), len(names))
    at_location = Counter(was.location for was in previous if was)
    on_executor = Counter(
        was.executor for was in previous if was and executors.get(was.executor) == was.location
    )
    wishes: list[tuple[bool, bool, int, str]] = []
    for location in dict.fromkeys(executors[name] for name in names):
        pool = [name for name in names if executors[name] == location]
        pool.sort(key=lambda name: on_executor[name] <= share)  # stable: those that could keep one more first
        lacking = at_location[location] - share * len(pool)
        for place, name in enumerate(pool):
            stays_here, stays_on_it = place < lacking, on_executor[name] > share
            wishes.append((not stays_here, not stays_on_it, names.index(name), name))
    chosen = {name for *_, name in sorted(wishes)[:more]}
    return {name: share + (name in chosen) for name in names}


def carried_over(previous: Sequence[RanAt | None], tasks: int, key_groups: int) -> list[RanAt | None]:
    """Find the place of most key groups of each of ``tasks`` new tasks, after another number of tasks.

    A new parallelism divides the key groups otherwise; their caches are at the earlier places.
    """
    if len(previous) == tasks:
        return list(previous)
    places: list[RanAt | None] = []
    for task in range(tasks):
        owned = groups_of(task, tasks, key_groups)
        owners = (
            Counter(task_of(group, len(previous), key_groups) for group in owned) if previous else Counter()
        )
        locations: Counter[str] = Counter()
        ran: Counter[RanAt] = Counter()
        for owner, groups in owners.items():
            was = previous[owner]
            if was is not None:
                locations[was.location] += groups
                ran[was] += groups
        if not ran:
            places.append(None)
            continue
        location = locations.most_common(1)[0][0]  # of equals the first, that of the lowest key groups
        places.append(next(was for was, _ in ran.most_common() if was.location == location))
    return places


def _by_number(name: str) -> tuple[int, str]:
    """Sort executors by their numbers: "2" before "10"."""
    return len(name), name
