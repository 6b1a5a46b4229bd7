"""For the documentation as a site: what MkDocs does not do with these pages by itself."""

from __future__ import annotations

import re
from typing import Any

from markdown import Extension, Markdown
from markdown.preprocessors import Preprocessor

DIRECTIVE = re.compile(r"\s*# doctest: .*")
FENCES_FIRST = 26
"""Fences are taken out at priority 25."""


class Sessions(Preprocessor):
    """Examples in docstrings (``>>>``, up to an empty line) become blocks of code, not quotations."""

    def run(self, lines: list[str]) -> list[str]:
        """Called by Markdown with a text's lines."""
        found: list[str] = []
        inside = False
        for line in lines:
            if not inside and line.startswith(">>> "):
                inside = True
                found += ["", "```pycon"]
            elif inside and not line.strip():
                inside = False
                found.append("```")
            found.append(DIRECTIVE.sub("", line) if inside else line)
        return [*found, "```"] if inside else found


class SessionsExtension(Extension):
    """The extension that brings it."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802 - Markdown's name
        """Called by Markdown."""
        md.preprocessors.register(Sessions(md), "sessions", FENCES_FIRST)


def on_config(config: Any) -> Any:
    """Called by MkDocs first."""
    config.markdown_extensions.append(SessionsExtension())
    return config


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Called by MkDocs for each page: a link to a file outside docs/ becomes the file's name."""
    outside = re.escape("../" * (page.file.src_uri.count("/") + 1))
    return re.sub(rf"\[([^\]]+)\]\({outside}([^)]*)\)", r"\1 (`\2`)", markdown)
