"""The alphabet: for each letter when it may come, what it does, and what is true after it succeeded."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from model.commands import operating as op
from model.commands import writing as wr
from model.commands.held import HELD_MAX, hold
from model.commands.truth import LINEAGES, TOTALS, Truth
from model.commands.world import Outcome, World


class Letter(NamedTuple):
    """``then`` gives what is true after ``act`` was done, of what was true before."""

    may: Callable[[World], bool]
    act: Callable[[World], Outcome]
    then: Callable[[Truth, World, Outcome], Truth] = lambda truth, *_: truth


def _hold(world: World) -> Outcome:
    hold(world)
    return Outcome(0, "")


def _run(*words: object) -> Callable[[World], Outcome]:
    return lambda world: world.run(*words)


LETTERS: dict[str, Letter] = {
    # the wr.query, and what else its process writes
    "batch": Letter(wr.always, wr.query, wr.batched),
    "load": Letter(wr.there, lambda w: wr.load(w, replace=False), lambda *t: wr.loaded(*t, replace=False)),
    "replace": Letter(wr.there, lambda w: wr.load(w, replace=True), lambda *t: wr.loaded(*t, replace=True)),
    "drop-table": Letter(
        op.with_ref,
        lambda w: wr.query(w, drops=("ref", TOTALS)),
        lambda *t: wr.dropped(*t, "ref", TOTALS),
    ),
    "derive": Letter(
        lambda w: op.with_ref(w) and not w.truth.derives, lambda w: wr.query(w, derives=True), wr.derived
    ),
    "underive": Letter(
        lambda w: op.with_ref(w) and w.truth.here.content.is_kept,
        lambda w: wr.query(w, drops=(TOTALS,), derives=False),
        wr.underived,
    ),
    "remake": Letter(
        wr.may_remake,
        lambda w: wr.query(w, shape=wr.OTHER_GROUPS),
        lambda t, *_: wr.remade(t, wr.OTHER_GROUPS),
    ),
    "remake-key": Letter(
        wr.may_remake, lambda w: wr.query(w, shape=wr.OTHER_KEY), lambda t, *_: wr.remade(t, wr.OTHER_KEY)
    ),
    "widen": Letter(
        lambda w: op.with_ref(w) and not w.truth.here.form.more,
        lambda w: wr.query(w, shape=w.truth.here.form._replace(more=True)),
        wr.widened,
    ),
    "zombie": Letter(lambda w: len(w.drivers) > 1, wr.zombie, wr.after_zombie),
    "trim": Letter(wr.there, wr.trim, wr.batched),
    # versions
    "restore": Letter(
        lambda w: wr.there(w) and wr.older(w) > 0 and not (w.truth.lineage and w.truth.here.generation),
        lambda w: w.run("restore", "--to", wr.older(w), "--yes"),
        wr.restored,
    ),
    "rewind": Letter(
        lambda w: wr.there(w) and wr.older(w) > 0 and w.truth.lineage == 0,
        lambda w: w.run("restore", "--to", wr.older(w), "--reprocess", "--yes", "--json"),
        lambda *t: wr.restored(*t, reprocess=True),
    ),
    "rename": Letter(
        lambda w: op.with_ref(w) and len(w.truth.here.form.column) < 3,
        lambda w: w.run("schema", "rename", "ref", *wr.rename_of(w.truth)),
        wr.renamed,
    ),
    "export": Letter(
        wr.healthy,
        lambda w: w.run("export", f"export-{len(w.truth.exports)}", "--json"),
        wr.exported,
    ),
    "export-old": Letter(
        lambda w: wr.healthy(w) and wr.older(w) > 0,
        lambda w: w.run("export", f"export-{len(w.truth.exports)}", "--at", wr.older(w), "--json"),
        wr.exported,
    ),
    "import": Letter(
        lambda w: wr.there(w) and bool(w.truth.exports),
        lambda w: w.run("import", w.truth.exports[-1][0], "--token", f"import-{w.truth.loads}", "--yes"),
        wr.imported,
    ),
    "import-rekey": Letter(
        lambda w: wr.there(w) and bool(w.truth.exports),
        lambda w: w.run("import", w.truth.exports[-1][0], "--token", f"rekey:ab:{w.truth.loads}", "--yes"),
        wr.imported,
    ),
    # checkpoints, and namespaces that take another's place
    "adopt": Letter(
        lambda w: wr.there(w) and w.truth.lineage < 3,
        lambda w: w.run("adopt", "--lineage", LINEAGES[w.truth.lineage + 1], "--yes"),
        op.adopted,
    ),
    "rekey": Letter(op.not_copied_yet, op.rekey, op.copied),
    "finish": Letter(
        lambda w: op.has_copy(w) and wr.healthy(w), lambda w: op.rekey(w, "--finish"), op.finished
    ),
    "back": Letter(op.may_go_back, op.back, op.went_back),
    "drop-copy": Letter(
        op.has_copy,
        lambda w: w.run("drop", "--yes", namespace=op.copy_name(w)),
        lambda t, w, _: t.without_space(op.copy_name(w)),
    ),
    "lose-copy-log": Letter(op.has_copy, lambda w: op.lose_log(w, op.copy_name(w)), op.copy_log_lost),
    "relog-copy": Letter(
        lambda w: op.has_copy(w) and bool(w.truth.spaces[op.copy_name(w)].damaged),
        lambda w: w.run("relog", "--yes", "--json", namespace=op.copy_name(w)),
        op.copy_relogged,
    ),
    "relog": Letter(
        lambda w: wr.there(w) and len(w.truth.name) < 5,
        lambda w: w.run("relog", "--yes", "--json"),
        op.relogged,
    ),
    "drop": Letter(
        wr.there,
        lambda w: w.run("drop", "--yes"),
        op.dropped,
    ),
    "alias": Letter(
        wr.healthy,
        _run("alias", "set", "live"),
        lambda t, *_: t._replace(aliases={**t.aliases, "live": t.name}),
    ),
    # backups
    "backup": Letter(
        lambda w: wr.there(w) and w.truth.here.shown,
        op.back_up,
        op.backed_up,
    ),
    "backup-copy": Letter(
        lambda w: op.has_copy(w) and op.is_whole_copy(w),
        lambda w: op.back_up(w, op.copy_name(w)),
        lambda t, w, o: op.backed_up(t, w, o, op.copy_name(w)),
    ),
    "cron": Letter(
        lambda w: bool(w.truth.spaces["n"].moved) and not w.truth.spaces["n"].damaged,
        lambda w: w.run("backup", "backup-n", namespace="n"),
    ),
    "restore-from": Letter(lambda w: w.truth.name in w.truth.backups, op.restore_from, op.restored_from),
    # stores and their losses
    "add-store": Letter(
        lambda w: wr.healthy(w) and len(w.truth.stores) == 1,
        lambda w: w.run("store", "add", f"b={w.url('b')}", stores=[f"a={w.url()}"]),
        lambda t, *_: t._replace(stores=("a", "b")),
    ),
    "remove-store": Letter(
        lambda w: wr.healthy(w) and len(w.truth.stores) == 2,
        lambda w: w.run("store", "remove", "b"),
        lambda t, *_: t._replace(stores=("a",)),
    ),
    "lose-store": Letter(wr.healthy, op.lose_store, op.store_lost),
    "lose-log": Letter(
        lambda w: wr.there(w) and "log" not in w.truth.here.damaged,
        op.lose_log,
        op.lost("the log is gone"),
    ),
    "lose-end": Letter(op.may_lose_end, op.lose_end, op.end_lost),
    "copies": Letter(lambda w: wr.healthy(w) and len(w.truths) == 1, op.take_copies),
    "older-store": Letter(
        lambda w: op.may_put_back(w) and not w.truth.here.damaged,
        lambda w: op.put_back(w, "spaces"),
        op.older_store,
    ),
    "older-log": Letter(op.may_put_back, lambda w: op.put_back(w, "logs"), op.older_log),
    "older-both": Letter(op.may_put_back, lambda w: op.put_back(w, "logs", "spaces"), op.older_both),
    # readers, time and upkeep
    "hold": Letter(lambda w: wr.healthy(w) and len(w.held) < HELD_MAX, _hold),
    "ahead": Letter(wr.always, op.step(3500)),
    "clock-back": Letter(wr.always, op.step(-3500)),
    "due": Letter(wr.always, op.step(70)),
    "recover": Letter(wr.there, _run("recover"), lambda t, *_: t.with_space(t.name, shown=True)),
    "repair": Letter(wr.healthy, _run("repair")),
    "vacuum": Letter(wr.healthy, _run("vacuum")),
}
