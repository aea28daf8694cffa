"""What mkdocs is told when it builds the site: pages that are made, and links."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from command_pages import command_reference
from disease_pages import disease_files, nav
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from page_links import TOP_PAGES, linked
from reference_pages import reference_files

ROOT = Path(__file__).parent.parent.parent

_SOURCES = ("reference_jobs",)
"""Folders to whose programs the documents lead."""

_NOT_SEARCHED = "---\nsearch:\n  exclude: true\n---\n"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages of the diseases into the navigation."""
    for part in config.nav or ():
        for entries in part.values():
            if isinstance(entries, list) and "checks.md" in entries:
                at = entries.index("checks.md")
                entries[at] = {"The checks": ["checks.md", *nav()]}
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that do not stand in docs/."""
    made = dict(disease_files())
    made["command_line.md"] = command_reference()
    made |= dict(reference_files())
    for source, page in TOP_PAGES.items():
        made[page] = (ROOT / source).read_text(encoding="utf-8")
    for folder in _SOURCES:
        for program in sorted((ROOT / folder).glob("*.py")):
            text = program.read_text(encoding="utf-8")
            name = program.relative_to(ROOT)
            made[f"sources/{name}.md"] = (
                f"{_NOT_SEARCHED}# {name}\n\n````python\n{text}````\n"
            )
    for path, content in made.items():
        there = files.get_file_from_path(path)
        if there is not None:
            files.remove(there)
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Lead links to where things are in the site."""
    uri = page.file.src_uri
    made = {place: source for source, place in TOP_PAGES.items()}
    if uri.startswith(("checks/", "sources/")) or uri == "checks.md":
        return markdown
    return linked(markdown, uri, made.get(uri, f"docs/{uri}"))


def on_page_content(html: str, **_: Any) -> str:
    """Let tables be wider than a narrow screen, and be reached by the keyboard."""
    return re.sub(r"<pre(?=>)", '<pre tabindex="0"', html)
