"""What imports what: no circles among modules, and every room of the library only uses those on lower floors.

A room is a package or module right below `phalanx`.  Imports in functions count as well, and those for types.
"""

import ast
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[1] / "src"
FLOORS = (  # from the bottom up; rooms on one floor do not import each other
    ("errors", "wording", "version", "installation", "rng", "pool", "signals", "notebook"),
    ("reading", "fields", "trust"),
    ("core", "models"),
    ("numerics", "data", "weighting"),
    ("clustering", "training", "processes"),
    ("aggregators",),
    ("promises",),
    ("attacks", "algorithms"),
    ("engine",),
    ("simulation",),
    ("runs",),
    ("conformance", "contracts", "fairness", "observers", "ray"),
    ("report",),
    ("experiments",),
    ("phalanx",),  # what `import phalanx` offers
    ("flower", "nvflare"),
    ("cli",),
    ("__main__",),
)
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}


def modules(folder):
    """The file of each module below a folder, by import path."""
    found = {path.relative_to(folder).with_suffix("").parts: path for path in folder.rglob("*.py")}
    return {".".join(parts[:-1] if parts[-1] == "__init__" else parts): path for parts, path in found.items()}


def imported(path, known):
    """The modules among those known that a file imports, in a function as well, and for types."""
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: a relative import"
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            names += [name if name in known else node.module for name in inner]
    return {name for name in names if name in known}


def room(module):
    return module.split(".")[1] if "." in module else module


@pytest.fixture(scope="module")
def graph():
    known = modules(SOURCES)
    return {name: imported(path, known) - {name} for name, path in known.items()}


def circle(graph):
    """The modules of a circle, each imported by the next one; none if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_every_room_has_its_floor(graph):
    assert {room(module) for module in graph} == set(FLOOR)


def test_modules_do_not_import_each_other_in_a_circle(graph):
    assert circle(graph) == []


def test_every_room_imports_from_lower_floors_only(graph):
    arrows = {(module, other) for module, others in graph.items() for other in others if room(module) != room(other)}
    assert len(arrows) > 200, "imports are found"
    assert sorted(arrow for arrow in arrows if FLOOR[room(arrow[0])] <= FLOOR[room(arrow[1])]) == []


def test_imports_of_all_kinds_are_found(tmp_path):
    (tmp_path / "house").mkdir()
    (tmp_path / "house" / "__init__.py").write_text("from house import cellar\n")
    (tmp_path / "house" / "cellar.py").write_text("import os\ndef dig():\n    from house.attic import rope\n")
    (tmp_path / "house" / "attic.py").write_text("if TYPE_CHECKING:\n    from house.cellar import dig\n")
    known = modules(tmp_path)
    found = {name: imported(path, known) for name, path in known.items()}
    assert found == {"house": {"house.cellar"}, "house.cellar": {"house.attic"}, "house.attic": {"house.cellar"}}
    assert set(circle(found)) == {"house.cellar", "house.attic"}


def test_a_class_name_means_one_thing():
    where = defaultdict(list)
    for path in sorted(SOURCES.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                where[node.name].append(str(path.relative_to(SOURCES)))
    assert len(where) > 500
    assert {name: paths for name, paths in where.items() if len(paths) > 1} == {}


TWICE = {  # files with the name of another one, by folder, each for the reason of its folder
    "cli": "demo models run schema study verify weights",  # the command that it is
    "contracts": "models weightings",  # the kind that it checks
    "report/figures": "holdings influence participation progress reports reputation separation staleness tree weights",
    # ... the figure that it draws
    "algorithms": "flame foolsgold",  # the algorithm of a paper, with its rule
}


def test_a_file_name_means_one_thing():
    excepted = {f"phalanx/{folder}/{name}.py" for folder, names in TWICE.items() for name in names.split()}
    where = defaultdict(set)
    for path in SOURCES.rglob("*.py"):
        if path.name != "__init__.py":
            where[path.name].add(str(path.relative_to(SOURCES)))
    assert len(where) > 300
    assert {name: paths for name, paths in where.items() if len(paths - excepted) > 1} == {}
    assert excepted <= set().union(*(paths for paths in where.values() if len(paths) > 1)), "of a file that has gone"
