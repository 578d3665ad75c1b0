"""Hook of MkDocs.

Links that leave `docs/` lead into the repository, every public package has a page of its API, and `llms.txt` lists the
pages with their first sentence, in the form of llmstxt.org.
"""

import ast
import json
import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
PUBLIC = (
    "aggregators", "algorithms", "attacks", "clustering", "conformance", "data", "fairness", "flower", "models",
    "nvflare", "observers", "weighting",
)  # fmt: skip
IMAGE = re.compile(r"!\[[^]]*\]\(((?:\.\./)+[^)#\s]+)\)")
LINK = re.compile(r"(\]\()((?:\.\./)+[^)#\s]+)(#[^)]*)?(\))")
NAMED = re.compile(r"\[(?:[\w-]+/)*([\w-]+\.md)\](?=\(((?:[\w.-]+/)*\1)[#)])")  # a link that says the name of a page


def on_files(files: Files, config: Any) -> Files:
    """Add a page for each public package, which lists what its `__all__` names; name the pages of folders in `nav`."""
    for package in ("", *PUBLIC):
        name = ".".join(filter(None, ("phalanx", package)))
        file = ROOT / "src" / "phalanx" / package / "__init__.py"
        text = f"# {name}\n\n{ast.get_docstring(ast.parse(file.read_text()))}\n\n"
        text += "".join(f"::: {name}.{member}\n\n" for member in exported(file))
        files.append(File.generated(config, f"api/{package or 'phalanx'}.md", content=text))
    for image in sorted(_images(files)):  # of results, which have their place next to the pages
        files.append(File(image, str(ROOT), config.site_dir, config.use_directory_urls))
    pages = sorted(file.src_uri for file in files if file.src_uri.endswith(".md"))
    config.nav = _whole(config.nav, pages)
    return files


def _images(files: Files) -> set[str]:
    """Return the pictures outside of `docs/` that its pages show, as paths in the repository."""
    written = [file for file in files.documentation_pages() if not file.src_uri.startswith("api/")]
    return {
        (ROOT / "docs" / file.src_uri).parent.joinpath(image).resolve().relative_to(ROOT).as_posix()
        for file in written
        for image in IMAGE.findall(file.content_string)
    }


def _whole(nav: Any, pages: list[str]) -> Any:
    """Return a part of `nav` in which a folder, `rules/`, is the list of its pages."""
    if isinstance(nav, dict):
        return {title: _whole(inner, pages) for title, inner in nav.items()}
    if isinstance(nav, list):
        found = [_whole(inner, pages) for inner in nav]
        return [page for inner in found for page in (inner if isinstance(inner, list) else [inner])]
    return [page for page in pages if page.startswith(nav)] if nav.endswith("/") else nav


def exported(file: Path) -> list[str]:
    """Return the classes and functions that a package exports, constants left out, in the order of `__all__`."""
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            return list(ast.literal_eval(node.value))
    raise ValueError(f"{file} has no __all__.")


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Return the page with links out of `docs/` as those into the repository, and titles of pages for their names."""
    folder = (ROOT / "docs" / page.file.src_uri).parent

    def outside(found: re.Match[str]) -> str:
        target = (folder / found[2]).resolve()
        if target.is_relative_to(ROOT / "docs") or not target.is_relative_to(ROOT):
            return found[0]
        kind = "tree" if target.is_dir() else "blob"
        place = f"{config.extra['repository']}/{kind}/main/{target.relative_to(ROOT).as_posix()}"
        return f"{found[1]}{place}{found[3] or ''}{found[4]}"

    def inside(found: re.Match[str]) -> str:
        image = (folder / found[1]).resolve().relative_to(ROOT).as_posix()
        return found[0].replace(found[1], os.path.relpath(image, Path(page.file.src_uri).parent))

    def titled(found: re.Match[str]) -> str:
        page = folder / found[2]
        return f"[{_title(page.read_text())[0]}]" if page.is_file() else found[0]

    return LINK.sub(outside, IMAGE.sub(inside, NAMED.sub(titled, markdown)))


def _title(text: str) -> tuple[str, str]:
    """Return the title of a page in Markdown, and the rest."""
    title, _, rest = text.partition("\n")
    return title.removeprefix("# "), rest


def on_post_build(config: Any) -> None:
    """Write `llms.txt`: a line for each page in `nav`, with its title and first sentence."""
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", ""]
    for section in config.nav:
        for title, inner in section.items():
            lines += [f"## {title}", "", *(_entry(page, config) for page in _pages(inner)), ""]
    (Path(config.site_dir) / "llms.txt").write_text("\n".join(lines))


def _pages(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    parts = nav.values() if isinstance(nav, dict) else nav
    return [page for part in parts for page in _pages(part)]


def _entry(page: str, config: Any) -> str:
    file = Path(config.docs_dir) / page
    if not file.is_file():  # of the API
        package = page.removeprefix("api/").removesuffix(".md")
        name = "phalanx" if package == "phalanx" else f"phalanx.{package}"
        source = ROOT / "src" / Path(*name.split(".")) / "__init__.py"
        first = (ast.get_docstring(ast.parse(source.read_text())) or "").partition("\n\n")[0].replace("\n", " ")
        return f"- [{name}]({page.removesuffix('.md')}/): {first}"
    title, text = _title(_markdown(file))
    paragraphs = [part for part in text.split("\n\n") if part.strip("\n")[:1].isalpha()]
    first = re.split(r"(?<=\.)\s", paragraphs[0].strip().replace("\n", " "))[0] if paragraphs else ""
    first = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", first)
    place = re.sub(r"(^|/)README$", r"\1", re.sub(r"\.(md|ipynb)$", "", page))
    return f"- [{title}]({place}{'/' if place and not place.endswith('/') else ''}): {first}"


def _markdown(file: Path) -> str:
    """Return the text of a page, or of the first cell of a notebook."""
    text = file.read_text()
    return "".join(json.loads(text)["cells"][0]["source"]) if file.suffix == ".ipynb" else text
