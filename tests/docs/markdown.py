"""Reads the documentation: its fenced blocks, headings and links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
"""The top of the repository."""


def documents() -> list[Path]:
    """Return every document whose blocks and links are checked."""
    top = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    return [path for path in [*top, *sorted((ROOT / "docs").rglob("*.md"))] if path.exists()]


@dataclass(frozen=True)
class Block:
    """One fenced block. ``line`` is that of its first line of content, from 1."""

    path: Path
    line: int
    language: str
    marks: tuple[str, ...]
    text: str

    @property
    def place(self) -> str:
        """``file:line``, as tools print it."""
        return f"{self.path}:{self.line}"

    def mark(self, name: str) -> str | None:
        """Return the value of a ``name=value`` mark."""
        for mark in self.marks:
            key, equals, value = mark.partition("=")
            if key == name and equals:
                return value
        return None


def _walk(tokens: list[Token]) -> Iterator[Token]:
    for token in tokens:
        yield token
        yield from _walk(token.children or [])


def _tokens(path: Path) -> list[Token]:
    return list(_walk(MarkdownIt("commonmark").enable("table").parse(path.read_text())))


def blocks(path: Path) -> list[Block]:
    """Return the fenced blocks of a document, in order."""
    found = []
    for token in _tokens(path):
        if token.type == "fence" and token.map is not None:
            language, *marks = token.info.split() or [""]
            found.append(Block(path, token.map[0] + 2, language, tuple(marks), token.content))
    return found


def links(path: Path) -> list[str]:
    """Return the targets of all links and images of a document."""
    targets = (token.attrGet("href") or token.attrGet("src") for token in _tokens(path))
    return [str(target) for target in targets if target]


def anchors(path: Path) -> set[str]:
    """Return the anchors of a document's headings, as GitHub forms them."""
    tokens = _tokens(path)
    found: set[str] = set()
    for before, token in pairwise(tokens):
        if before.type == "heading_open":
            text = "".join(part.content for part in token.children or [] if part.type in ("text", "code_inline"))
            slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
            copies = (f"{slug}-{number}" for number in range(1, len(found) + 1))
            found.add(slug if slug not in found else next(name for name in copies if name not in found))
    return found
