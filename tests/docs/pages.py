"""The project's pages, and what stands in their fenced blocks."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))

_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INNER = re.compile(r"\$\(([^()]*)\)")
_FILE = re.compile(r"# file: (\S+)\n")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the line of the page that it begins at."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def file(self) -> str:
        """The file name that its first line gives; empty if there is none."""
        match = _FILE.match(self.text)
        return match[1] if match else ""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path, *languages: str) -> Iterator[Block]:
    """The fenced blocks of a page in these languages."""
    text = page.read_text()
    for match in _FENCE.finditer(text):
        if match[1] in languages:
            yield Block(page, text.count("\n", 0, match.start()) + 1, match[1], match[2])


def all_blocks(*languages: str) -> list[Block]:
    """The fenced blocks of all pages in these languages."""
    return [block for page in PAGES for block in blocks(page, *languages)]


def write_files(page: Path, folder: Path) -> dict[str, Path]:
    """The files that a page shows, written to `folder`, by name; several blocks of one name are joined."""
    written: dict[str, Path] = {}
    for block in blocks(page, "python"):
        if block.file:
            path = folder / block.file
            with path.open("a" if block.file in written else "w") as file:
                file.write(block.text)
            written[block.file] = path
    return written


def commands(text: str) -> Iterator[list[str]]:
    """The simple commands of a shell text as lists of words, those inside ``$(...)`` first."""
    for line in text.replace("\\\n", " ").splitlines():
        for inner in _INNER.findall(line):
            yield from commands(inner)
        lexer = shlex.shlex(_INNER.sub("VALUE", line), posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if set(word) <= set("|&;"):
                while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                    words.pop(0)
                if words:
                    yield words
                words = []
            else:
                words.append(word)
