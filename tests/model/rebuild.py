"""A model of repair on Redis: one key group, a writer, merges, two repairs, one loss, a failover, readers.

The steps are calls of ``sinks/redis/lua/`` (seal, merge and rebuild), one atomic call each, in every
order. In every state a reader asks for each version: it gets exactly that version, or is refused. In every
state one more repair is tried as well, alone and undisturbed: it puts back all that the log holds. Where the
log does not reach, it deletes nothing, and the key group stays refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

Rows = frozenset[tuple[str, int]]
Changes = Mapping[str, int | None]

VERSIONS: tuple[Changes, ...] = ({"a": 1}, {"a": None, "b": 2}, {"a": 3})
"""The changes of each version; None: it deletes. A merge of the second one's first row empties the base."""
TOKENS_MAX = 2


class Rules(NamedTuple):
    """The rules of repair. Each was needed: an earlier wording failed without it."""

    deletes_nothing: bool = True
    ends_its_own_marks: bool = True
    keeps_what_is_lost: bool = True


class Scope(NamedTuple):
    """The limits of the exploration. ``reach``: the oldest version that the log holds."""

    versions: int = 2
    repairs: int = 2
    losses: int = 1
    failovers: int = 0
    reach: int = 1
    rules: Rules = Rules()


class Group(NamedTuple):
    """A key group: its header, and its hashes. ``tokens``: None: the header is gone; (): no mark.

    ``brought``: rows of versions that are not sealed, under the name of their attempt.
    """

    tokens: tuple[int, ...] | None = ()
    server: int = 0
    floor: int = 0
    layers: tuple[int, ...] = ()
    base_at: int = 0
    lost_layers: tuple[int, ...] = ()
    lost_base: int = 0
    since: int | None = None
    changes: tuple[tuple[int, Any], ...] = ()
    brought: tuple[tuple[int, Any], ...] = ()
    base: Rows | None = None
    beside: tuple[tuple[int, Rows], ...] = ()


class Repair(NamedTuple):
    """The progress of one repair, and its knowledge."""

    at: str = "begin"
    server: int = 0
    horizon: int = 0
    seen: tuple[int, ...] = ()
    since: int | None = None
    base: int = 0
    everything: bool = False
    gap: bool = False
    todo: tuple[int, ...] = ()
    applied: bool = False


class State(NamedTuple):
    """The state of the model. ``replica``: the data of the next server, if there is a failover."""

    group: Group = Group()
    visible: int = 0
    horizon: int = 0
    server: int = 0
    listed: int = 0
    writer: str = "apply"
    repairs: tuple[Repair, ...] = ()
    losses: int = 0
    failovers: int = 0
    replica: Group | None = None


Steps = Iterator[tuple[str, State]]


def expected(version: int) -> Rows:
    """Return the rows at a version."""
    return _merged(frozenset(), range(1, version + 1))


def _merged(rows: Rows, versions: range) -> Rows:
    found = dict(rows)
    for version in versions:
        for key, value in VERSIONS[version - 1].items():
            found.pop(key, None)
            if value is not None:
                found[key] = value
    return frozenset(found.items())


# -- the calls ------------------------------------------------------------------------------------------


def _hash(group: Group, version: int) -> Any:
    return dict(group.changes).get(version)


def _with(group: Group, version: int, rows: Any) -> Group:
    """Return the group with this layer's rows; None: without the hash."""
    changes = {at: of for at, of in group.changes if at != version}
    if rows:
        changes[version] = rows
    return group._replace(changes=tuple(sorted(changes.items())))


def _whole(group: Group) -> bool:
    """Return whether everything that the header lists exists."""
    return all(_hash(group, at) for at in group.layers) and (not group.base_at or group.base is not None)


def apply(group: Group, version: int) -> Group:
    """Write rows without any condition."""
    rows = frozenset(VERSIONS[version - 1].items())
    return group._replace(brought=tuple(sorted({**dict(group.brought), version: rows}.items())))


def seal(group: Group, version: int) -> Group | None:
    """Count, give the rows the layer's name, and list; None: not whole."""
    lost = version in group.lost_layers
    if version in group.layers or (version <= group.floor and not lost):
        return _without_brought(group, version)
    rows = dict(group.brought).get(version)
    if rows != frozenset(VERSIONS[version - 1].items()):
        return None
    layers = tuple(sorted({*group.layers, version}, reverse=True))
    left = tuple(at for at in group.lost_layers if at != version)
    named = _with(_without_brought(group, version), version, rows)
    return named._replace(layers=layers, lost_layers=left)


def _without_brought(group: Group, version: int) -> Group:
    return group._replace(brought=tuple(one for one in group.brought if one[0] != version))


def merge(group: Group) -> Group:
    """Move one row of the oldest layer into the base."""
    oldest = group.layers[-1]
    rows, base = _hash(group, oldest), dict(group.base or ())
    key, value = min(rows, key=str)
    base.pop(key, None)
    if value is not None:
        base[key] = value
    group = _with(group, oldest, rows - {(key, value)})
    group = group._replace(floor=max(group.floor, oldest))
    group = group._replace(base=frozenset(base.items()) or None, base_at=oldest if base else 0)
    return group if _hash(group, oldest) else group._replace(layers=group.layers[:-1])


def begin(group: Group, token: int, rules: Rules) -> tuple[Group, tuple[int, ...]]:
    """Mark the group and note what is lost; return the tokens that were there before."""
    gone = tuple(at for at in group.layers if not _hash(group, at))
    base_gone = bool(group.base_at) and group.base is None
    if group.tokens == () and not gone and not base_gone:
        return group, ()
    seen = group.tokens or ()
    tokens = (*(at for at in seen if at != token), token)[-TOKENS_MAX:]
    if not rules.deletes_nothing and (gone or base_gone):
        kept = tuple((at, of) for at, of in group.changes if at not in group.layers)
        return Group(tokens, since=0, changes=kept, brought=group.brought, beside=group.beside), ()
    header_gone = group.tokens is None
    group = group._replace(tokens=tokens)
    if header_gone:
        return group._replace(since=0), seen
    left = tuple(at for at in group.layers if at not in gone)
    group = group._replace(layers=left, base_at=0 if base_gone else group.base_at)
    if rules.keeps_what_is_lost:
        lost = tuple(sorted({*group.lost_layers, *gone}))
        group = group._replace(lost_layers=lost)
        if base_gone:
            group = group._replace(lost_base=max(group.floor, 1))
    return group, tuple(at for at in seen if at != token)


def put(group: Group, token: int, upto: int, *, everything: bool) -> Group:
    """Put the base that was written beside into its place."""
    beside = {at: rows for at, rows in group.beside if at != token}
    rows = dict(group.beside).get(token)
    group_without = group._replace(beside=tuple(sorted(beside.items())))
    if group.tokens is None or token not in group.tokens or rows is None:
        return group_without
    if not everything:
        if group.lost_base != upto:
            return group_without
        return group_without._replace(base=rows or None, base_at=upto if rows else 0, lost_base=0)
    if upto < group.floor:
        return group_without
    for at in [at for at in group.layers if at <= upto]:
        group_without = _with(group_without, at, None)
    missing = tuple(at for at in group.layers if at > upto and not _hash(group, at))
    return group_without._replace(
        base=rows or None,
        base_at=upto if rows else 0,
        floor=upto,
        since=upto + 1,
        layers=tuple(at for at in group.layers if at > upto and at not in missing),
        lost_layers=tuple(sorted({*(at for at in group.lost_layers if at > upto), *missing})),
        lost_base=0,
    )


def keep_lost(group: Group, token: int, since: int) -> Group:
    """Mark a group that may lack versions from this one on, where the log does not reach back to it."""
    tokens = group.tokens or ()
    tokens = tokens if token in tokens else (*tokens, token)[-TOKENS_MAX:]
    return group._replace(tokens=tokens, since=since if group.since is None else min(group.since, since))


def end(group: Group, token: int, since: int, seen: tuple[int, ...], server: int, rules: Rules) -> Group:
    """End this repair's marks, where all is back."""
    if not rules.ends_its_own_marks:
        return group if group.tokens is None else group._replace(tokens=(), server=server, since=None)
    if group.tokens == ():
        return group._replace(server=server)
    if group.tokens is None or token not in group.tokens:
        return group
    lost = bool(group.lost_layers or group.lost_base) or not _whole(group)
    lost = lost or (group.since is not None and group.since < since)
    ended = (token,) if lost else (token, *seen)
    left = tuple(at for at in group.tokens if at not in ended)
    if lost and not left:
        return group
    group = group if lost else group._replace(since=None)
    return group._replace(tokens=left) if left else group._replace(tokens=(), server=server)


# -- callers -----------------------------------------------------------------------------------------------


class Model:
    """The transitions of the model. A step raises AssertionError where an invariant breaks."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.start = State(repairs=(Repair(),) * scope.repairs)
        self._checked: set[State] = set()

    def steps(self, state: State) -> Steps:
        """Yield every possible step, and the state after it."""
        self._check(state)
        yield from self._write(state)
        yield from self._merge(state)
        yield from self._disturb(state)
        for at, repair in enumerate(state.repairs):
            for label, following, after in self._repair(state, repair, at + 1):
                repairs = (*state.repairs[:at], after, *state.repairs[at + 1 :])
                yield f"repair {at + 1}: {label}", following._replace(repairs=repairs)

    # -- readers, and one more repair -----------------------------------------------------------------------

    def _check(self, state: State) -> None:
        for version in range(max(state.horizon, 1), state.visible + 1):
            found = _read(state, version)
            assert found is None or found == expected(version), (
                f"I1: version {version} is read as {sorted(found)}, not {sorted(expected(version))}"
            )
        alone = state._replace(repairs=(), losses=0, failovers=0, replica=None)
        if alone not in self._checked:  # the progress of the other repairs is in the group
            self._check_repaired(alone)
            self._checked.add(alone)

    def _check_repaired(self, state: State) -> None:
        """Run one more repair, alone, and check it."""
        token = self.scope.repairs + 1
        repair, before = Repair(), state
        while repair.at != "done":
            _, state, repair = next(self._repair(state, repair, token))
        readable = range(max(state.horizon, 1), state.visible + 1)
        if not repair.gap:
            for version in readable:
                assert version < state.group.floor or _read(state, version) == expected(version), (
                    f"I10: after one more repair version {version} is {_read(state, version)}"
                )
            return
        lost = _gone(before, state)
        assert not lost, f"a repair took {lost}"
        assert state.group.tokens, "what is lost is served as whole"

    # -- the writer ------------------------------------------------------------------------------------------

    def _write(self, state: State) -> Steps:
        version = state.visible + 1
        if version > self.scope.versions:
            return
        if state.writer == "apply":
            yield f"apply {version}", state._replace(group=apply(state.group, version), writer="seal")
        elif state.writer == "seal" and _answers(state):
            sealed = seal(state.group, version)
            after = state._replace(group=sealed, writer="flip") if sealed else state._replace(writer="apply")
            yield f"seal {version}", after
        elif state.writer == "flip" and state.server == state.listed:
            yield f"flip {version}", state._replace(visible=version, writer="apply")

    @staticmethod
    def _merge(state: State) -> Steps:
        group = state.group
        if state.horizon < state.visible:
            yield "announce", state._replace(horizon=state.horizon + 1)
        if _answers(state) and group.layers and group.layers[-1] <= state.horizon:
            base_gone = group.base_at and group.base is None
            if _hash(group, group.layers[-1]) and not base_gone:
                yield "merge a row", state._replace(group=merge(group))

    # -- losses and failovers ------------------------------------------------------------------------

    def _disturb(self, state: State) -> Steps:
        group = state.group
        if state.losses < self.scope.losses:
            lose = state._replace(losses=state.losses + 1)
            if group.tokens is not None:
                kept = Group(None, changes=group.changes, brought=group.brought, base=group.base)
                yield "lose the header", lose._replace(group=kept._replace(beside=group.beside))
            for at, _ in group.changes:
                yield f"lose layer {at}", lose._replace(group=_with(group, at, None))
            for at, _ in group.brought:
                yield f"lose rows of {at}", lose._replace(group=_without_brought(group, at))
            if group.base is not None:
                yield "lose the base", lose._replace(group=group._replace(base=None))
            for at, _ in group.beside:
                left = tuple(one for one in group.beside if one[0] != at)
                yield f"lose the base beside of {at}", lose._replace(group=group._replace(beside=left))
        if state.failovers < self.scope.failovers:
            if state.replica is None:
                yield "replicate", state._replace(replica=group)
            else:
                new = state._replace(group=state.replica, replica=None, server=state.server + 1)
                yield "fail over", new._replace(failovers=state.failovers + 1)

    # -- a repair ------------------------------------------------------------------------------------

    def _repair(self, state: State, repair: Repair, token: int) -> Iterator[tuple[str, State, Repair]]:
        """Yield the next call of a repair: its name, the state and the repair after it."""
        group, over = state.group, repair._replace(at="done")
        if repair.at == "begin":
            yield self._begin(state, token)
        elif repair.at == "build":
            rows = expected(repair.base)
            beside = tuple(sorted({**dict(group.beside), token: rows}.items()))
            following = _of(state, group._replace(beside=beside))
            yield "write the base beside", following, repair._replace(at="put")
        elif repair.at == "put":
            if state.server != repair.server or token not in dict(group.beside):
                yield "put: refused", state, over
            else:
                after = put(group, token, repair.base, everything=repair.everything)
                yield "put the base in place", _of(state, after), repair._replace(at="versions")
        elif repair.at == "keep":
            if state.server != repair.server or group.tokens is None:
                yield "keep what is lost: refused", state, over
            else:
                kept = keep_lost(group, token, repair.since or 0)
                yield "keep what is lost", _of(state, kept), repair._replace(at="versions")
        elif repair.at == "versions" and repair.todo:
            yield self._put_back(state, repair)
        elif repair.at == "versions":
            yield self._end(state, repair, token)

    def _begin(self, state: State, token: int) -> tuple[str, State, Repair]:
        group, seen = begin(state.group, token, self.scope.rules)
        since = group.since
        if state.server != state.listed or group.server != state.server:
            newest = max([group.floor + 1, *group.layers])
            since = newest if since is None else min(since, newest)
        everything = since == 0 and state.horizon > 0
        base = state.horizon if everything else group.lost_base
        decided = state.visible + (state.writer != "apply")
        reach, wanted = self.scope.reach, set(range(max(state.horizon, 1), decided + 1))
        gap = bool(base) and reach > 1
        wanted |= {*group.lost_layers}
        if since:
            wanted |= set(range(since, decided + 1))
        gap = gap or any(at < min(reach, max(state.horizon, 1)) for at in wanted)
        todo = tuple(sorted(at for at in wanted if at >= reach or at >= state.horizon))
        at = "build" if base and not gap else "keep" if gap and since is not None else "versions"
        if everything and not gap:
            since = state.horizon + 1
        known = Repair(at, state.server, state.horizon, seen, since, base, everything, gap, todo)
        return "begin", _of(state, group), known

    @staticmethod
    def _put_back(state: State, repair: Repair) -> tuple[str, State, Repair]:
        group, version = state.group, repair.todo[0]
        following = repair._replace(todo=repair.todo[1:], applied=False)
        if state.server != repair.server or group.tokens is None:
            return f"version {version}: refused", state, repair._replace(at="done")
        merged = version <= group.floor and version not in group.lost_layers
        if not repair.applied:
            if merged or version in group.layers:
                return f"version {version} is there", state, following
            return f"apply {version}", _of(state, apply(group, version)), repair._replace(applied=True)
        sealed = seal(group, version)
        if sealed is None:
            return f"apply {version} again", _of(state, apply(group, version)), repair
        return f"seal {version} again", _of(state, sealed), following

    def _end(self, state: State, repair: Repair, token: int) -> tuple[str, State, Repair]:
        after = repair._replace(at="done")
        if state.server != repair.server:
            return "end: refused", state, after
        since = 99 if repair.gap else 98 if repair.since is None else repair.since
        group = end(state.group, token, since, repair.seen, state.server, self.scope.rules)
        return "end", _of(state, group)._replace(listed=state.server), after


def _of(state: State, group: Group) -> State:
    return state._replace(group=group)


def _answers(state: State) -> bool:
    """Return whether the server answers calls on the key group that are not a repair's."""
    group = state.group
    return state.server == state.listed == group.server and group.tokens == ()


def _read(state: State, version: int) -> Rows | None:
    """Return what a reader at the version gets; None: it is refused."""
    group = state.group
    if not _answers(state) or version < group.floor:
        return None
    sources = [_hash(group, at) for at in group.layers if at <= version]
    if group.base_at:
        sources.append(group.base)
    found: dict[str, int | None] = {}
    for rows in sources:
        if rows is None:
            return None
        for key, value in rows:
            found.setdefault(key, value)
    return frozenset((key, value) for key, value in found.items() if value is not None)


def _gone(before: State, after: State) -> str:
    """Return what a repair that met a gap has deleted; it must be nothing."""
    if before.group.base is not None and after.group.base is None:
        return "the base"
    gone = {at for at, _ in before.group.changes} - {at for at, _ in after.group.changes}
    listed = gone & {*before.group.layers, *before.group.lost_layers}
    return f"layers {sorted(listed)}" if listed else ""
