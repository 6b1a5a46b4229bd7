"""Decoders of msgspec, each created once, and one at a time.

The first decoder of a class fills in msgspec's information about it, and attaches it to the class
before it is complete, for recursive classes. A thread that creates another decoder meanwhile uses
the incomplete half, and the process dies of SIGSEGV:
docs/decisions/0003-store-bounded-versioned-forms.md. So no other code creates a decoder, except
of a class of its own, nor calls ``msgspec.json.decode(..., type=...)``.
"""

from __future__ import annotations

from typing import Any, TypeVar, overload

import msgspec

from tidegate.base.forks import Lock

Kind = TypeVar("Kind")

_one_at_a_time = Lock()
_json: dict[Any, msgspec.json.Decoder[Any]] = {}
_msgpack: dict[Any, msgspec.msgpack.Decoder[Any]] = {}


@overload
def json_decoder(kind: type[Kind]) -> msgspec.json.Decoder[Kind]: ...
@overload
def json_decoder(kind: Any) -> msgspec.json.Decoder[Any]: ...
def json_decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """Return the decoder from JSON to this type, the same each time. Threads may share it."""
    decoder = _json.get(kind)
    if decoder is None:
        with _one_at_a_time:
            decoder = _json[kind] = _json.get(kind) or msgspec.json.Decoder(kind)
    return decoder


@overload
def msgpack_decoder(kind: type[Kind]) -> msgspec.msgpack.Decoder[Kind]: ...
@overload
def msgpack_decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]: ...
def msgpack_decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    """Return the decoder from MessagePack to this type, the same each time. Threads may share it."""
    decoder = _msgpack.get(kind)
    if decoder is None:
        with _one_at_a_time:
            decoder = _msgpack[kind] = _msgpack.get(kind) or msgspec.msgpack.Decoder(kind)
    return decoder
