"""MkDocs hook: pages link to files of the repository outside docs/; the site holds copies of those, as plain text.

The same links work on GitHub and in an editor, where they lead to the files themselves.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

DOCS = Path(__file__).parents[1] / "docs"
OUTSIDE = re.compile(r"\[([^\[\]]+)\]\(((?:\.\./)+[^)#\s]+)(?:#[^)]*)?\)")


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Adds a copy of each file that a page links to."""
    copied = {path for page in files.documentation_pages() for path in linked(DOCS / page.src_uri)}
    for path in sorted(path for path in copied if path.is_file()):
        files.append(File.generated(config, copy_of(path), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Points the links at the copies. A folder has none: its name stays, without a link."""
    here = (DOCS / page.file.src_uri).parent

    def link(found: re.Match[str]) -> str:
        text, target = found.groups()
        path = (here / target).resolve()
        if path.is_relative_to(DOCS):
            return found[0]
        return f"[{text}]({os.path.relpath(DOCS / copy_of(path), here)})" if path.is_file() else text

    return OUTSIDE.sub(link, markdown)


def linked(page: Path) -> set[Path]:
    """The files and folders outside docs/ that a page links to."""
    found = {(page.parent / target).resolve() for _, target in OUTSIDE.findall(page.read_text())}
    return {path for path in found if not path.is_relative_to(DOCS)}


def copy_of(path: Path) -> str:
    """Its name in the site: browsers show .txt, and download most others."""
    return f"files/{path.relative_to(DOCS.parent)}.txt"
