"""Calls of every function of Redis's library: the keys that it finds, its arguments.

``CASES`` has at least one call of each function. In keys and arguments, ``@`` is the id of the server that is
asked, ``&name`` the key of that name. ``U`` is the namespace's uuid.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

Content = Mapping[str, str] | list[str]
"""Fields of a hash, or entry ids of a stream."""


@dataclass(frozen=True, eq=False)
class Case:
    """One call. ``keys[0]`` names the first of its keys; ``refused`` is its refusal's code, None: any."""

    function: str
    what: str
    named: tuple[str, ...]
    keys: Mapping[str, Content]
    args: tuple[str, ...]
    refused: str | None = ""

    def __str__(self) -> str:
        return f"{self.function}: {self.what}"


def _header(**fields: str) -> dict[str, str]:
    """A header; ``l_t`` stands for ``l:t``, ``k_t_2`` for ``k:t:2``."""
    return {"u": "U", "s": "@"} | {name.replace("_", ":"): value for name, value in fields.items()}


def _meta(**fields: str) -> dict[str, str]:
    made = {"uuid": "U", "identity": "I", "ready": "1", "visible": "3", "digest": "d", "epoch": "1"}
    return made | {"writer": "w", "horizon": "2", "servers": "@"} | fields


def _on_group(function: str, *args: str, refused: str = "") -> _Calls:
    return _Calls(function, ("h",), ("U", "@", *args), refused)


def _on_pointer(function: str, *args: str, refused: str = "") -> _Calls:
    return _Calls(function, ("meta",), ("U", *args), refused)


class _Calls(NamedTuple):
    """A call, for several states of its keys."""

    function: str
    named: tuple[str, ...]
    args: tuple[str, ...]
    refused: str

    def on(self, what: str, keys: Mapping[str, Content]) -> Case:
        return Case(self.function, what, self.named, keys, self.args, self.refused)


def _time(at: int) -> str:
    return struct.pack(">q", at).decode("latin-1")


def _expires(at: int) -> str:
    return f"e{_time(at)}+"


TWO = {"a": "+1", "b": "+1"}
NEWER = {"a": "+2", "b": "+2"}
DELETED = {"a": "-"}
LAYER, BASE, OTHER, UNSEALED = "t:d:2:U", "t:b", "t:d:1:U", "t:d:2:U:A"
_MOVED = ("U", "@,origin")
"""Of a call for a key group that was compared at another server."""

_merge = _on_group("merge", "t", "3", "0", "100", "0")
_merge_from = _on_group("merge", "t", "3", "2", "100", "0")
_merge_lost = _on_group("merge", "t", "3", "0", "100", "0", refused="TGLOST")
MERGES = [
    _merge.on("the last rows of a layer", {"h": _header(l_t="2", b_t="1"), BASE: TWO, LAYER: {"a": "+2"}}),
    _merge.on(
        "the oldest of two layers",
        {
            "h": _header(floor="1", l_t="3,2", b_t="1", k_t="2 x", k_t_2="1 y"),
            BASE: TWO,
            LAYER: {"a": "+2"},
            "t:d:3:U": {"b": "+3"},
        },
    ),
    _merge.on("the first layer", {"h": _header(l_t="2"), LAYER: TWO}),
    _merge.on("the first layer, with deleted rows", {"h": _header(l_t="2"), LAYER: TWO | DELETED}),
    _merge.on("the first layer, all of it deleted", {"h": _header(l_t="2"), LAYER: DELETED}),
    _merge.on("the first layer becomes the base", {"h": _header(l_t="2", k_t_2="2 x"), LAYER: TWO}),
    _merge.on(
        "a layer of the same keys becomes the base",
        {"h": _header(l_t="2", b_t="1", k_t="2 x", k_t_2="2 x"), BASE: TWO, LAYER: NEWER},
    ),
    _merge.on(
        "the layer deletes all of the base",
        {"h": _header(l_t="2", b_t="1"), BASE: {"a": "+1"}, LAYER: DELETED},
    ),
    _merge.on("nothing up to the version", {"h": _header(l_t="5", b_t="1"), BASE: TWO, "t:d:5:U": TWO}),
    _merge.on("nothing at all", {"h": _header()}),
    _merge_lost.on("a base that is lost", {"h": _header(l_t="2", b_t="1"), LAYER: TWO}),
    _merge_lost.on("a layer that is lost", {"h": _header(l_t="2", b_t="1"), BASE: TWO}),
    _merge_from.on("a base from before the start", {"h": _header(b_t="1"), BASE: TWO}),
    _merge_from.on(
        "a base from before the start, and the layer of the start",
        {"h": _header(l_t="2", b_t="1", k_t="2 x"), BASE: TWO, LAYER: {"c": "+2"}},
    ),
    _merge_from.on("a layer from before the start", {"h": _header(l_t="1", k_t_1="2 x"), OTHER: TWO}),
    _merge_from.on(
        "layers from before the start and of it", {"h": _header(l_t="2,1"), LAYER: NEWER, OTHER: TWO}
    ),
]

_expire = _on_group("expire", "t", "3", _time(50), "0", "100", "1")
_expirable = {"a": _expires(20), "b": _expires(80)}
EXPIRES = [
    _expire.on("the last row", {"h": _header(floor="1", b_t="1"), BASE: {"a": _expires(20)}}),
    _expire.on(
        "one of two, and a layer",
        {"h": _header(l_t="2", b_t="1", k_t="2 x", k_t_2="1 y"), BASE: _expirable, LAYER: {"c": "+2"}},
    ),
    _expire.on("none", {"h": _header(b_t="1"), BASE: TWO}),
    _expire.on("no base", {"h": _header()}),
    _on_group("expire", "t", "3", _time(50), "0", "100", "1", refused="TGLOST").on(
        "a base that is lost", {"h": _header(b_t="1")}
    ),
    _on_group("expire", "t", "3", _time(50), "0", "100", "0").on(
        "counted, not dropped", {"h": _header(l_t="2", b_t="1"), BASE: _expirable, LAYER: {"c": "+2"}}
    ),
]

_seal = _on_group("seal", "7", "t", "2", "x", "u", "1", "")
_seal_attempt = _on_group("seal", "7:50:A", "t", "2", "x", "u", "1", "")
_seal_refused = _on_group("seal", "7:50:A", "t", "2", "x", "u", "1", "", refused="TGATTEMPT")
_ITS_ROWS = {"t:d:7:U:A": TWO, "u:d:7:U:A": {"a": "+7"}}
SEALS = [
    _seal_attempt.on("rows of an attempt", {"h": _header(l_t="6", sealed="6 40 Z")} | _ITS_ROWS),
    _seal_attempt.on("rows of an attempt are missing", {"h": _header(), "t:d:7:U:A": TWO}),
    _seal_attempt.on("an attempt's rows, late, under the floor", {"h": _header(floor="7")} | _ITS_ROWS),
    _seal_attempt.on(
        "an attempt's rows come twice",
        {"h": _header(l_t="7", l_u="7", sealed="7 50 A"), "t:d:7:U": TWO, "u:d:7:U": TWO} | _ITS_ROWS,
    ),
    _seal_attempt.on(
        "a lost layer of an attempt, under the floor",
        {"h": _header(floor="7", b_t="7", lost_t="7,5"), BASE: TWO} | _ITS_ROWS,
    ),
    _seal_refused.on("another attempt was sealed", {"h": _header(sealed="7 40 Z")} | _ITS_ROWS),
    _seal_refused.on("a discarded attempt", {"h": _header(discarded="Z,A,")} | _ITS_ROWS),
    _seal.on("rows of two tables", {"h": _header(l_t="6"), "t:d:7:U": TWO, "u:d:7:U": {"a": "+7"}}),
    _seal.on("rows are missing", {"h": _header(), "t:d:7:U": TWO}),
    _seal.on("late, under the floor", {"h": _header(floor="7"), "t:d:7:U": TWO, "u:d:7:U": {"a": "+7"}}),
    _seal.on(
        "one table sealed already", {"h": _header(l_t="7"), "t:d:7:U": {"a": "+7"}, "u:d:7:U": {"a": "+7"}}
    ),
    _on_group("seal", "7", "t", "0", "").on("no rows", {"h": _header(l_t="6")}),
    _on_group("seal_again", "7:50:A", "t", "2", "x").on(
        "rows put back",
        {"h": _header(u="U!token", floor="8", b_t="8", lost_t="7"), BASE: TWO, "t:d:7:U:A": TWO},
    ),
    Case(
        "seal_many",
        "two key groups",
        ("h", "2:h"),
        {"h": _header(), "t:d:7:U": TWO, "2:h": _header(), "2:t:d:7:U": {"a": "+7"}},
        ("U", "@", "7", "1", "t", "2", "x", "1", "t", "1", ""),
    ),
    Case(
        "seal_many",
        "two key groups, late, under the floor",
        ("h", "2:h"),
        {"h": _header(floor="7"), "t:d:7:U": TWO, "2:h": _header(floor="7"), "2:t:d:7:U": {"a": "+7"}},
        ("U", "@", "7", "1", "t", "2", "x", "1", "t", "1", ""),
    ),
]

_begin_rebuild = _on_group("begin_rebuild", "token")
_end_rebuild = _on_group("end_rebuild", "token", "2", "older")
_begin_base = _on_group("begin_base", "token", "t")
_put_base = _on_group("put_bases", "token", "0", "t", "1")
_put_all = _on_group("put_bases", "token", "3", "t", "3", "u", "3")
_keep_lost = _on_group("keep_lost", "token", "2")
_sweep_rebuild = _on_group("sweep_rebuild", "t", "token", "1")
_MARKED, _BUILT = _header(u="U!token"), {"t:r:token": TWO | {"token": ""}}
_LOST_BASE = {"lost_base:t": "1"}
REBUILDS = [
    _begin_rebuild.on("all is there", {"h": _header(l_t="2", b_t="1"), BASE: TWO, LAYER: NEWER}),
    _begin_rebuild.on("a layer is lost", {"h": _header(l_t="2", b_t="1", k_t_2="2 x"), BASE: TWO}),
    _begin_rebuild.on("the base is lost", {"h": _header(l_t="2", b_t="1"), LAYER: TWO}),
    _begin_rebuild.on("the header is lost", {}),
    _begin_rebuild.on("begun before", {"h": _MARKED | {"l:t": "2"}, LAYER: TWO}),
    _begin_rebuild.on("begun by another", {"h": _header(u="U!other", l_t="2"), LAYER: TWO}),
    _begin_rebuild.on("marked by an old release", {"h": _header(u="U!")}),
    _on_group("begin_rebuild", "token", "t", "5").on(
        "what is lost was emptied", {"h": _header(l_t="2,5", b_t="1"), "t:d:5:U": TWO}
    ),
    Case("begin_rebuild", "another's header", ("h",), {"h": _header(u="V")}, ("U", "@", "token"), "TGOTHER"),
    _keep_lost.on("a mark", {"h": _MARKED | {"l:t": "2"}, LAYER: TWO}),
    _keep_lost.on("no mark, and something lost", {"h": _header(lost="5")}),
    _begin_base.on("a base", {"h": _MARKED | _LOST_BASE}),
    _begin_base.on("a base that is written already", {"h": _MARKED | _LOST_BASE} | _BUILT),
    _put_base.on("a base", {"h": _MARKED | _LOST_BASE} | _BUILT),
    _put_base.on("a base over what is left", {"h": _MARKED | _LOST_BASE, BASE: NEWER} | _BUILT),
    _put_base.on("a base without rows", {"h": _MARKED | _LOST_BASE, "t:r:token": {"token": ""}, BASE: TWO}),
    _put_base.on("another put it back", {"h": _MARKED | {"b:t": "1"}, BASE: TWO} | _BUILT),
    _put_base.on("another ended it", {"h": _header(u="U!other") | _LOST_BASE} | _BUILT),
    _on_group("put_bases", "token", "0", "t", "1", refused="TGLOST").on(
        "rows that are lost", {"h": _MARKED | _LOST_BASE, "t:r:token": TWO}
    ),
    _put_all.on(
        "all of a key group",
        {
            "h": _MARKED | {"lost": "0", "l:t": "4,2", "k:t:2": "2 x", "b:v": "1"},
            "u:r:token": {"token": ""},
            "v:b": TWO,
            LAYER: NEWER,
            "t:d:4:U": TWO,
        }
        | _BUILT,
    ),
    _end_rebuild.on("a mark", {"h": _MARKED | {"l:t": "2", "lost": "2"}, LAYER: TWO}),
    _end_rebuild.on("a mark of two", {"h": _header(u="U!older,token,newer", l_t="2"), LAYER: TWO}),
    _end_rebuild.on("something is lost still", {"h": _MARKED | _LOST_BASE | {"l:t": "2"}, LAYER: TWO}),
    _end_rebuild.on("something was lost since", {"h": _MARKED | {"l:t": "2"}}),
    _end_rebuild.on("another's mark", {"h": _header(u="U!newer", l_t="2"), LAYER: TWO}),
    _end_rebuild.on("no mark", {"h": _header(s="origin", l_t="2"), LAYER: TWO}),
    Case("note_moved", "a key group", ("h",), {"h": _header(s="origin", l_t="2"), LAYER: TWO}, _MOVED),
    Case("note_moved", "one noted before", ("h",), {"h": _header()}, _MOVED),
    Case("note_moved", "another origin", ("h",), {"h": _header(s="nobody")}, _MOVED, "TGLOST"),
    _sweep_rebuild.on("what a repair left", {"h": _header()} | _BUILT),
    _sweep_rebuild.on("a repair goes on", {"h": _MARKED} | _BUILT),
    _sweep_rebuild.on("no rows", {"h": _header()}),
    _sweep_rebuild.on("rows without a header", _BUILT),
    _on_group("sweep_rebuild", "t", "token", "0").on("counted only", {"h": _header()} | _BUILT),
]

_discard = _on_group("discard", "6", "2", "A", "B")
DISCARDS = [
    _discard.on("the only layer", {"h": _header(l_t="7", k_t_7="2 x", sealed="7 50 A"), "t:d:7:U": TWO}),
    _discard.on(
        "layers of two tables",
        {
            "h": _header(floor="2", l_t="7,5", l_u="6", b_t="2", sealed="7 50 A", discarded="Y,Z,"),
            "t:d:7:U": TWO,
            "t:d:5:U": TWO,
            "u:d:6:U": TWO,
            BASE: TWO,
        },
    ),
    _discard.on("once more", {"h": _header(l_t="5", sealed="5 40 Z", discarded="A,B,"), "t:d:5:U": TWO}),
    _discard.on("under a mark", {"h": _MARKED | {"l:t": "7", "lost:t": "6"}, "t:d:7:U": TWO}),
    _discard.on("the header is lost", {}),
]

_begin_fill = _on_group("begin_fill", "5")
_end_fill = _on_group("end_fill", "5")
FILLS = [
    _begin_fill.on("nothing is there", {"h": _header()}),
    _begin_fill.on(
        "over an older one",
        {
            "h": _header(floor="3", filling="4", l_t="4", b_u="3", k_u="2 x", l_v="5,2"),
            "t:d:4:U": TWO,
            "u:b": TWO,
            "v:d:5:U": TWO,
            "v:d:2:U": TWO,
        },
    ),
    _begin_fill.on("late, under the floor", {"h": _header(floor="5", b_t="5"), BASE: TWO}),
    _end_fill.on(
        "layers become bases",
        {"h": _header(floor="4", filling="5", l_t="5", l_u="5", k_t_5="2 x"), "t:d:5:U": TWO, "u:d:5:U": TWO},
    ),
    _end_fill.on(
        "a merge is under way",
        {"h": _header(floor="4", filling="5", l_t="5", b_t="5"), "t:d:5:U": TWO, BASE: {"c": "+5"}},
    ),
    _end_fill.on(
        "layers of an attempt",
        {"h": _header(floor="4", filling="5", l_t="5", sealed="5 50 A"), "t:d:5:U": TWO, "t:d:5:U:B": TWO},
    ),
    _end_fill.on("nothing was filled", {"h": _header(floor="4", filling="5")}),
    _end_fill.on("ended before", {"h": _header(floor="5", b_t="5"), BASE: TWO}),
    _end_fill.on("never begun", {"h": _header()}),
]

_sweep = _on_group("sweep", "t", "2", "U", "1")
_sweep_attempt = _on_group("sweep", "t", "2", "U:A", "1")
GROUPS = [
    _on_group("stamp", "7").on("a note", {"h": _header()}),
    _on_group("stamp", "7").on("a higher note", {"h": _header(whole="9")}),
    Case("make", "a new header", ("h",), {}, ("U",)),
    Case("make", "a header that is there", ("h",), {"h": _header()}, ("U",)),
    Case("make", "another's header", ("h",), {"h": _header(u="V")}, ("U",)),
    _sweep.on("late rows under the floor", {"h": _header(floor="2"), LAYER: TWO}),
    _sweep.on("nothing there", {"h": _header(floor="2")}),
    _sweep.on("a layer that is listed", {"h": _header(floor="2", l_t="2"), LAYER: TWO}),
    _sweep_attempt.on("an attempt's late rows", {"h": _header(floor="2"), UNSEALED: TWO}),
    _sweep_attempt.on("beside their layer", {"h": _header(l_t="2"), UNSEALED: TWO, LAYER: TWO}),
    _sweep_attempt.on("an attempt's rows await their seal", {"h": _header(), UNSEALED: TWO}),
    _on_group("sweep", "t", "2", "V", "1").on("another's rows", {"h": _header(), "t:d:2:V": TWO}),
    _on_group("sweep", "t", "2", "V", "0").on("counted only", {"h": _header(), "t:d:2:V": TWO}),
    Case(
        "remove",
        "a key group",
        ("h",),
        {"h": _header(), BASE: TWO, LAYER: NEWER},
        ("u", "U", f"&{BASE}", f"&{LAYER}", "&t:d:9:U", "&h"),
    ),
    Case("remove", "another's key group", ("h",), {"h": _header(u="V"), BASE: TWO}, ("u", "U", f"&{BASE}")),
    Case("remove", "rows without a header", ("h",), {BASE: TWO}, ("u", "U", f"&{BASE}", "&h")),
    Case(
        "remove",
        "a pointer",
        ("meta",),
        {"meta": _meta(), "catalog": {"3": "1 e"}},
        ("uuid", "U", "&catalog", "&leases", "&meta"),
    ),
]

CATALOG = {"1": "1600000000000001 one", "2": "1600000000000002 two", "3": "1600000000000003 three"}
NOW = str(time.time_ns() // 1000)
LATER, PAST = str(time.time_ns() // 1000 + 3600 * 10**6), "1600000000000000"
_publish = _on_pointer("publish", "1", "4", "d4", "entry")
_publish_first = _on_pointer("publish", "1", "1", "d1", "entry")
_filled = _on_pointer("publish_filled", "1", "5", "d5", "entry")
_forget = _on_pointer("forget", "3")
_forget_schemas = _on_pointer("forget_schemas", "3", "id0", "id1")
_put_schemas = _on_pointer("put_schemas", "id1", "one", "id2", "two")
_put_entries = _on_pointer("put_entries", "2", "50", "two", "3", "60", "three")
_resume = _on_pointer("resume", "1", "9", "d9", "7", "0", "50", "nine")
_resume_older = _on_pointer("resume", "1", "9", "d9", "7", "3", "50", "nine")
_lease = _on_pointer("lease", "mine", "3", "60000000")
_release = _on_pointer("release", "mine")
_MANY = dict.fromkeys("abc", f"2 {NOW} {LATER}")
_renew = _on_pointer("lease", "writer-1", "3", "60000000")
_announce = _on_pointer("announce", "3", "36000000000", "-1", "1", "2", "0")
_begin = _on_pointer("begin", "1", "4", "50", "A")
_begin_refused = _on_pointer("begin", "1", "4", "50", "A", refused="TGATTEMPT")
_refuse_attempts = _on_pointer("refuse_attempts", "1", "2", "4", "50", "A", "5", "60", "B")
_BEGUN = {"begun:3": "40 Z", "begun:4": "50 A", "begun:5": "60 B"}
POINTERS = [
    _on_pointer("create", "I").on("a new pointer", {}),
    _on_pointer("create", "J").on("a pointer that is there", {"meta": _meta()}),
    _on_pointer("ready", "@").on("a new pointer", {"meta": {"uuid": "U", "identity": "I"}}),
    _on_pointer("ready", "@").on("a pointer that is ready", {"meta": _meta()}),
    _on_pointer("ready", "@", refused="TGOTHER").on("no pointer", {}),
    _on_pointer("claim", "2", "me", "lib").on("a higher epoch", {"meta": _meta()}),
    _on_pointer("claim", "1", "me", "lib").on("the same epoch", {"meta": _meta()}),
    _begin.on("the next version", {"meta": _meta() | {"begun:3": "40 Z"}}),
    _begin.on("one that was begun before", {"meta": _meta() | _BEGUN}),
    _begin.on("a version that is visible", {"meta": _meta(visible="4") | _BEGUN}),
    _begin_refused.on("another attempt was begun", {"meta": _meta() | {"begun:4": "40 Z"}}),
    _begin_refused.on("a discarded attempt", {"meta": _meta(discarded="4 50 A,")}),
    _on_pointer("begin", "1", "4", "50", "A", refused="TGFENCED").on("a zombie", {"meta": _meta(epoch="2")}),
    _refuse_attempts.on("the first ones", {"meta": _meta() | _BEGUN}),
    _refuse_attempts.on("more than are remembered", {"meta": _meta(discarded="3 40 Z,4 50 A,")}),
    _on_pointer("refuse_attempts", "1", "2", "4", "50", "A", refused="TGFENCED").on(
        "a zombie", {"meta": _meta(epoch="2")}
    ),
    _on_pointer("forget_begun", "4").on("notes", {"meta": _meta() | _BEGUN}),
    _on_pointer("forget_begun", "4").on("no notes", {"meta": _meta()}),
    _on_pointer("heartbeat", "1").on("a sign of life", {"meta": _meta()}),
    _on_pointer("heartbeat", "1").on("under a higher epoch", {"meta": _meta(epoch="2")}),
    _on_pointer("heartbeat", "1", refused="TGNONE").on("no pointer", {}),
    _on_pointer("mark", "1", "5", "A").on("an empty store", {"meta": _meta(visible="0", horizon="0")}),
    _on_pointer("mark", "1", "5", "A").on("a store in use", {"meta": _meta()}),
    _publish.on("the next version", {"meta": _meta(), "catalog": CATALOG, "versions": ["1-0", "2-0", "3-0"]}),
    _publish.on("a stream that is ahead", {"meta": _meta(), "catalog": CATALOG, "versions": ["9-0"]}),
    _publish.on("no catalog and no stream", {"meta": _meta()}),
    _publish.on("not the next version", {"meta": _meta(visible="2"), "catalog": CATALOG}),
    _publish_first.on("the first version", {"meta": _meta(visible="0", horizon="0")}),
    _filled.on("what was filled", {"meta": _meta(visible="0", horizon="5")}),
    _filled.on("another version", {"meta": _meta(visible="0", horizon="4")}),
    _forget.on("some entries", {"meta": _meta(), "catalog": CATALOG}),
    _forget.on("the last entry", {"meta": _meta(), "catalog": {"1": CATALOG["1"]}}),
    _forget.on("no catalog", {"meta": _meta()}),
    _put_entries.on("all are lost", {"meta": _meta()}),
    _put_entries.on("one is lost", {"meta": _meta(), "catalog": {"3": CATALOG["3"]}}),
    _put_entries.on("below the horizon, and not visible", {"meta": _meta(horizon="3", visible="4")}),
    _on_pointer("put_entries", "2", "50", "two", refused="TGNONE").on("no pointer", {}),
    _resume.on("a pointer made again", {"meta": _meta(visible="0", horizon="0")}),
    _resume_older.on("a pointer that went back", {"meta": _meta(), "catalog": CATALOG}),
    _resume.on("a pointer that shows a version", {"meta": _meta()}),
    _resume.on("a pointer of a fill", {"meta": _meta(visible="0", horizon="5")}),
    _resume.on("under a higher epoch", {"meta": _meta(visible="0", horizon="0", epoch="2")}),
    _forget_schemas.on("some", {"meta": _meta(), "schemas": {"id0": "zero", "id2": "two"}}),
    _forget_schemas.on("the last one", {"meta": _meta(), "schemas": {"id0": "zero"}}),
    _forget_schemas.on(
        "another version is visible", {"meta": _meta(visible="4"), "schemas": {"id0": "zero"}}
    ),
    _forget_schemas.on("a version has begun", {"meta": _meta() | _BEGUN, "schemas": {"id0": "zero"}}),
    _put_schemas.on("the first ones", {"meta": _meta()}),
    _put_schemas.on("more", {"meta": _meta(), "schemas": {"id0": "zero"}}),
    _lease.on("the first one", {"meta": _meta()}),
    _lease.on("one more", {"meta": _meta(), "leases": {"other": f"3 {PAST} {LATER}"}}),
    _lease.on("renewed", {"meta": _meta(), "leases": {"mine": f"3 {PAST} {LATER}"}}),
    _lease.on(
        "in place of one that ran out",
        {"meta": _meta(max_leases="1"), "leases": {"other": f"2 {PAST} {PAST}"}},
    ),
    _on_pointer("lease", "mine", "3", "60000000", refused="TGLEASES").on(
        "one too many", {"meta": _meta(max_leases="1"), "leases": {"other": f"3 {PAST} {LATER}"}}
    ),
    _on_pointer("lease", "m y", "3", "60000000", refused="TGLEASE").on("no lease id", {"meta": _meta()}),
    _on_pointer("lease", "mine", "9", "60000000", refused="TGAHEAD").on("too early", {"meta": _meta()}),
    _renew.on("the writer's", {"meta": _meta(), "leases": {"other": f"3 {PAST} {LATER}"}}),
    _renew.on("the writer's again", {"meta": _meta() | {"lease:writer-1": f"3 {PAST} {LATER}"}}),
    _on_pointer("lease", "mine", "1", "60000000", refused="TGEXPIRED").on("too late", {"meta": _meta()}),
    _release.on("the last one", {"meta": _meta(), "leases": {"mine": f"3 {PAST} {LATER}"}}),
    _release.on("nothing to release", {"meta": _meta()}),
    _on_pointer("release", "writer-1").on(
        "the writer's", {"meta": _meta() | {"lease:writer-1": f"3 {PAST} {LATER}"}}
    ),
    _announce.on(
        "a lease holds", {"meta": _meta(), "catalog": CATALOG, "leases": {"mine": f"2 {NOW} {LATER}"}}
    ),
    _announce.on(
        "a lease held too long",
        {"meta": _meta(), "catalog": CATALOG, "leases": {"mine": f"2 {PAST} {LATER}"}},
    ),
    _announce.on("the writer's holds", {"meta": _meta() | {"lease:writer-1": f"2 {PAST} {LATER}"}}),
    _announce.on("the last lease is none", {"meta": _meta(), "leases": {"mine": "x"}}),
    _announce.on("more leases than may be", {"meta": _meta(), "leases": _MANY}),
    _announce.on("the last lease ran out", {"meta": _meta(), "leases": {"mine": f"2 {PAST} {PAST}"}}),
    _announce.on(
        "leases ran out", {"meta": _meta(), "leases": {"mine": f"2 {PAST} {PAST}", "his": f"2 {PAST} {PAST}"}}
    ),
    _announce.on("no leases", {"meta": _meta()}),
    _on_pointer("list_servers", "1", "@,other", "@:run:0").on("more servers", {"meta": _meta()}),
    _on_pointer("list_servers", "1", "@", refused="TGFENCED").on("a zombie", {"meta": _meta(epoch="2")}),
    _on_pointer("note_tables", "t").on("a table", {"meta": _meta()}),
    _on_pointer("note_tables", "t", refused="TGNONE").on("no namespace", {}),
    _on_pointer("drop", "table:t", "").on("a namespace", {"meta": _meta(), "catalog": CATALOG}),
    _on_pointer("drop", refused="TGNONE").on("no namespace", {}),
]

ALIAS = {"revision": "r1", "namespace": "n", "uuid": "u"}
ALIASES = [
    Case("set_alias", "a new one", ("alias",), {}, ("", "r1", "n", "u")),
    Case("set_alias", "another target", ("alias",), {"alias": ALIAS}, ("r1", "r2", "m", "v")),
    Case("set_alias", "too late", ("alias",), {"alias": ALIAS}, ("", "r2", "m", "v")),
    Case("drop_alias", "an alias", ("alias",), {"alias": ALIAS}, ("r1",)),
    Case("drop_alias", "too late", ("alias",), {"alias": ALIAS}, ("r0",)),
    Case("drop_alias", "no alias", ("alias",), {}, ("",)),
]

_STATE = {"h": _header(floor="1", l_t="3,2", b_t="1"), "t:d:3:U": {"a": "+3"}, LAYER: NEWER, BASE: TWO}
_NO_BASE = {"h": _header(l_t="2"), LAYER: NEWER}
_ELSEWHERE = {"h": _header(s="origin", l_t="2", b_t="1"), LAYER: NEWER, BASE: TWO}
_leases = _on_pointer("leases", "0")
READS = [
    *(
        _on_group("read", "t", "3", "0", *keys).on(what, _STATE)
        for what, keys in {
            "a key of the newest layer": ("a",),
            "a key of an older layer": ("b",),
            "a key of nowhere": ("z",),
            "several keys": ("a", "b", "z"),
        }.items()
    ),
    _on_group("read", "t", "2", "0", "z").on("a key of nowhere, no base", _NO_BASE),
    _on_group("read", "u", "2", "0", "z").on("a table without rows", _NO_BASE),
    _on_group("read", "t", "3", "0", "z", refused="TGLOST").on("no header", {}),
    Case("read", "at another server than compared", ("h",), _ELSEWHERE, (*_MOVED, "t", "3", "0", "a")),
    _on_group("read", "t", "3", "0", "a", refused="TGLOST").on("compared elsewhere", _ELSEWHERE),
    _on_group("read", "t", "3", "0", "a", refused="TGLOST").on(
        "something is lost", {"h": _MARKED | _LOST_BASE | {"l:t": "2", "lost": "3"}, LAYER: NEWER}
    ),
    _on_group("scan", "t", "3", "0", "0", "1", "0").on("the newest layer", _STATE),
    _on_group("scan", "t", "3", "0", "0", "9", "999").on("all rows", _STATE),
    _on_group("scan", "t", "2", "0", "0", "9", "999").on("all rows, no base", _NO_BASE),
    _on_group("scan", "u", "2", "0", "0", "9", "999").on("no rows", _NO_BASE),
    _on_group("scan", "t", "3", "0", "2:0", "100", "0").on("a layer", _STATE),
    _on_group("scan", "t", "3", "0", "9:0", "100", "0").on("a layer that was merged", _STATE),
    _on_group("scan", "t", "3", "0", "0:0", "100", "0").on("the base", _STATE),
    _on_group("scan", "t", "3", "0", "0:0", "100", "0").on("no base", _NO_BASE),
    _on_group("scan", "t", "3", "0", "x", "100", "0", refused="TGCURSOR").on("no cursor", _STATE),
    _on_group("mergeable", "t", "3", "0", _time(50), "0", "0", "100").on("layers and a base", _STATE),
    _on_group("mergeable", "t", "3", "2", _time(50), "2", "0", "100").on("from a start on", _STATE),
    _on_group("mergeable", "t", "3", "0", _time(50), "0", "0", "100").on("no base", _NO_BASE),
    _on_group("look", "2", "t").on("a table", _STATE),
    _on_group("look", "2", "t", "u").on("one table of two", _STATE),
    _on_group("look", "2", "t").on("a lost layer", {"h": _header(u="U!token", floor="2", lost_t="2")}),
    _on_group("look", "2", "t").on(
        "a lost layer that was written", {"h": _header(u="U!token", floor="2", lost_t="2"), LAYER: TWO}
    ),
    _on_group("header").on("a header", _STATE),
    _on_group("rows", "t", "2", "a", "z").on("rows of a layer", _STATE),
    _on_group("rows", "t", "9", "a").on("no such layer", _STATE),
    _on_pointer("pointer").on("a pointer", {"meta": _meta()}),
    _on_pointer("pointer", "1").on("a pointer and its entry", {"meta": _meta()}),
    _on_pointer("catalog", "1", "3").on("entries", {"meta": _meta(), "catalog": CATALOG}),
    _on_pointer("catalog", "1", "3").on("none", {"meta": _meta(visible="0")}),
    _on_pointer("schemas").on("schemas", {"meta": _meta(), "schemas": {"id": "one"}}),
    _on_pointer("schemas").on("none", {"meta": _meta()}),
    _on_pointer("schemas", "id", "other").on("some", {"meta": _meta(), "schemas": {"id": "one"}}),
    _leases.on("leases", {"meta": _meta(), "leases": {"mine": f"3 {PAST} {LATER}"}}),
    _leases.on("the writer's", {"meta": _meta() | {"lease:writer-1": f"3 {PAST} {LATER}"}}),
    _leases.on("none that holds", {"meta": _meta(), "leases": {"mine": f"3 {PAST} {PAST}", "m y": "x"}}),
    _leases.on("more than may be", {"meta": _meta(max_leases="1"), "leases": _MANY}),
    _leases.on("none", {"meta": _meta()}),
    _on_pointer("leases", "1").on(
        "another page", {"meta": _meta() | {"lease:writer-1": f"3 {PAST} {LATER}"}, "leases": _MANY}
    ),
    _on_pointer("leftovers").on("entries", {"meta": _meta(), "catalog": CATALOG}),
    _on_pointer("leftovers").on("none", {"meta": _meta()}),
    _on_pointer("begun").on("notes", {"meta": _meta(discarded="3 40 Z,") | _BEGUN}),
    _on_pointer("begun").on("no notes", {"meta": _meta()}),
    _on_pointer("begun", refused="TGNONE").on("no pointer", {}),
    Case("present", "the library", ("h",), {"h": _header()}, ()),
]

CASES = [*MERGES, *EXPIRES, *SEALS, *REBUILDS, *DISCARDS, *FILLS, *GROUPS, *POINTERS, *ALIASES, *READS]
