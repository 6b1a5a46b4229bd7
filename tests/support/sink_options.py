"""Keywords of a sink in tests: options, and fields that are no options (``Options.fixed``)."""

from __future__ import annotations

import dataclasses
from typing import Any

from tidegate.options import Options

OPTIONS = {field.name for field in dataclasses.fields(Options) if "text" in field.metadata}
FIXED = {field.name for field in dataclasses.fields(Options)} - OPTIONS


def sink_keywords(**keywords: Any) -> dict[str, Any]:
    """Return the same keywords with those that are no options in ``_fixed``."""
    fixed = {name: keywords.pop(name) for name in FIXED & keywords.keys()}
    return {**keywords, "_fixed": fixed} if fixed else keywords
