"""Write the vectors of readers to conformance/vectors.

tools/run python tools/vectors.py [--check]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tidegate.testing.conformance.vectors.keys import key_vectors, name_vectors
from tidegate.testing.conformance.vectors.redis_refusals import refusal_vectors
from tidegate.testing.conformance.vectors.schemas import schema_vectors
from tidegate.testing.conformance.vectors.values import value_vectors

FOLDER = Path(__file__).parent.parent / "conformance" / "vectors"


def files() -> dict[str, str]:
    """The text of each file, by its name."""
    of = {
        "names.json": name_vectors(),
        "keys.json": key_vectors(),
        "values.json": value_vectors(),
        "refusals.json": refusal_vectors(),
    }
    texts = {name: _listed(vectors) for name, vectors in of.items()}
    parts = ",\n".join(f'"{name}": {_listed(rows).rstrip()}' for name, rows in schema_vectors().items())
    return {**texts, "schemas.json": f"{{\n{parts}\n}}\n"}


def _listed(vectors: list[dict[str, Any]]) -> str:
    """One vector a line: a change shows as one."""
    return "[\n" + ",\n".join(json.dumps(vector, ensure_ascii=False) for vector in vectors) + "\n]\n"


def drifted() -> list[str]:
    """The files that are not what the code makes."""
    made = files()
    extra = {path.name for path in FOLDER.glob("*")} - made.keys()
    return sorted(extra | {n for n, text in made.items() if not _is(FOLDER / n, text)})


def _is(path: Path, text: str) -> bool:
    return path.exists() and path.read_text() == text


if __name__ == "__main__":
    if "--check" in sys.argv:
        if wrong := drifted():
            sys.exit(f"not what the code makes: {', '.join(wrong)}; run tools/run python tools/vectors.py")
    else:
        FOLDER.mkdir(parents=True, exist_ok=True)
        for name, text in files().items():
            (FOLDER / name).write_text(text)
