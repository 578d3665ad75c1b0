"""The folder that the site is built of: a hook of `mkdocs build`, and a program to run before `zensical build`.

Links that leave `docs/` lead into the repository, notebooks become pages, every package with an `__all__` has a page of
its API, every command one with its options, and `llms.txt` lists the pages with their first sentence (llmstxt.org).
"""

import ast
import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DOCS, SOURCES = ROOT / "docs", ROOT / "src" / "phalanx"
sys.path.insert(0, str(Path(__file__).parent))
import command_pages  # noqa: E402  (files of this folder)
from api_examples import public, shown  # noqa: E402

IMAGE = re.compile(r"!\[[^]]*\]\(((?:\.\./)+[^)#\s]+)\)")
LINK = re.compile(r"(\]\()((?:\.\./)+[^)#\s]+)(#[^)]*)?(\))")
NAMED = re.compile(r"\[(?:[\w-]+/)*([\w-]+\.md)\](?=\(((?:[\w.-]+/)*\1)[#)])")  # a link that says the name of a page


def on_config(config: Any) -> Any:
    """Have MkDocs read the prepared folder, which lies next to the site."""
    folder = Path(config.site_dir).parent
    config.nav = prepare(folder)
    config.docs_dir = str(folder / "docs")
    return config


def prepare(folder: Path) -> Any:
    """Write `docs/` and the configuration of Zensical to a folder, and return `nav` with each page named."""
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    shutil.rmtree(folder / "docs", ignore_errors=True)
    pages = _api() | command_pages.pages()
    for file in sorted(DOCS.rglob("*")):
        place = file.relative_to(DOCS).as_posix()
        if file.suffix in (".md", ".ipynb"):
            text = _notebook(file) if file.suffix == ".ipynb" else file.read_text()
            page = _rewritten(text, file.parent, folder / "docs", config)
            if file.suffix == ".ipynb":
                page = page.replace("\n", f"\n\n*[Download this notebook]({file.name}).*\n", 1)
            pages[place.replace(".ipynb", ".md")] = page
        if file.is_file() and file.suffix not in (".md", ".py") and "__pycache__" not in place:
            _copy(file, folder / "docs" / place)  # a notebook as well: its page leads to it
    nav = _whole(config["nav"], sorted(pages))
    for place, text in {**pages, "llms.txt": _listed(nav, pages, config)}.items():
        (folder / "docs" / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / "docs" / place).write_text(text)
    del config["hooks"]
    handler = next(plugin for plugin in config["plugins"] if "mkdocstrings" in plugin)["mkdocstrings"]["handlers"][
        "python"
    ]
    handler["paths"] = [str(ROOT / path) for path in handler["paths"]]
    handler["options"]["extensions"] = [str(ROOT / path) for path in handler["options"]["extensions"]]
    config |= {"nav": nav, "docs_dir": "docs", "site_dir": "zensical"}
    (folder / "zensical.yml").write_text(yaml.safe_dump(config, sort_keys=False))
    return nav


def _copy(file: Path, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(file, place)


def _api() -> dict[str, str]:
    """Return a page for each public package, which lists what its `__all__` names."""
    pages = {}
    for name, members in public().items():
        about = ast.get_docstring(ast.parse((SOURCES.parent / Path(*name.split(".")) / "__init__.py").read_text()))
        text = f"# {name}\n\n{about}\n\n"
        for member in members:
            text += f"::: {name}.{member}\n\n"
            if example := shown().get(f"{name}.{member}"):  # of a constant, which has no docstring
                text += f"```pycon\n{example}\n```\n\n"
        pages[f"api/{name.removeprefix('phalanx.')}.md"] = text
    return pages


def _notebook(file: Path) -> str:
    """Return a notebook as a page, with what its cells printed."""
    parts = []
    for cell in json.loads(file.read_text())["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            text = "".join(output.get("text", output.get("data", {}).get("text/plain", "")))
            text = "\n".join(line.rstrip() for line in re.sub(r"\x1b\[[\d;]*m", "", text).splitlines())
            parts.append(f"```{{.text .output .no-copy}}\n{text.strip(chr(10))}\n```")
    return "\n\n".join(parts)


def _rewritten(text: str, source: Path, built: Path, config: Any) -> str:
    """Return a page with links out of `docs/` as those into the repository, and titles of pages for their names."""
    here = source.relative_to(DOCS)

    def outside(found: re.Match[str]) -> str:
        target = (source / found[2]).resolve()
        if target.is_relative_to(DOCS) or not target.is_relative_to(ROOT):
            return found[0]
        kind = "tree" if target.is_dir() else "blob"
        place = f"{config['extra']['repository']}/{kind}/main/{target.relative_to(ROOT).as_posix()}"
        return f"{found[1]}{place}{found[3] or ''}{found[4]}"

    def inside(found: re.Match[str]) -> str:
        image = (source / found[1]).resolve().relative_to(ROOT)
        _copy(ROOT / image, built / image)
        return found[0].replace(found[1], os.path.relpath(image, here))

    def titled(found: re.Match[str]) -> str:
        page = source / found[2]
        return f"[{_title(page.read_text())[0]}]" if page.is_file() else found[0]

    text = re.sub(r"(\]\((?!https?:)(?![^)\s]*examples/)[^)\s]*)\.ipynb(?=[#)])", r"\1.md", text)
    return LINK.sub(outside, IMAGE.sub(inside, NAMED.sub(titled, text)))


def _whole(nav: Any, pages: list[str]) -> Any:
    """Return a part of `nav` in which a folder, `rules/`, is the list of its pages."""
    if isinstance(nav, dict):
        return {title: _whole(inner, pages) for title, inner in nav.items()}
    if isinstance(nav, list):
        found = [_whole(inner, pages) for inner in nav]
        return [page for inner in found for page in (inner if isinstance(inner, list) else [inner])]
    return [page for page in pages if page.startswith(nav)] if nav.endswith("/") else nav


def _title(text: str) -> tuple[str, str]:
    """Return the title of a page in Markdown, and the rest."""
    title, _, rest = text.partition("\n")
    return title.removeprefix("# "), rest


def _listed(nav: Any, pages: dict[str, str], config: Any) -> str:
    """Return `llms.txt`: a line for each page in `nav`, with its title and first sentence."""
    lines = [f"# {config['site_name']}", "", f"> {config['site_description']}", ""]
    for section in nav:
        for title, inner in section.items():
            lines += [f"## {title}", "", *(_entry(page, pages[page]) for page in _pages(inner)), ""]
    return "\n".join(lines)


def _pages(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    parts = nav.values() if isinstance(nav, dict) else nav
    return [page for part in parts for page in _pages(part)]


def _entry(page: str, whole: str) -> str:
    title, text = _title(whole)
    parts = [part.strip("\n") for part in text.split("\n\n")]
    paragraphs = [part for part in parts if re.match(r"[^\W\d_]|`[a-z ]+` ", part) and not part.startswith("Status: ")]
    first = re.split(r"(?<=[^A-Z]\.)\s", paragraphs[0].strip().replace("\n", " "))[0] if paragraphs else ""
    first = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", first)
    place = re.sub(r"(^|/)README$", r"\1", page.removesuffix(".md"))
    return f"- [{title}]({place.rstrip('/') or '.'}/): {first}"


if __name__ == "__main__":
    prepare(Path(sys.argv[1]) if sys.argv[1:] else ROOT / "build")
