"""Every default of what can occur in a run, against a stored list: a changed one changes what identities mean.

`python tests/generated.py` adds new classes and new fields to the list.
"""

import dataclasses
import importlib
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from configurable_classes import classes

from generated import COMMAND
from phalanx.runs.canonical import FORM, PUBLIC_NAME, defaults, field_name, public_name

STORED = Path(__file__).with_name("defaults.json")
REQUIRED = "<required>"


def found():
    """The defaults of today, in canonical form, by class and field."""
    return {
        public_name(kind): {
            field_name(f): defaults(kind).get(field_name(f), REQUIRED) for f in dataclasses.fields(kind) if f.init
        }
        for kind in classes()
    }


def changes(before, after):
    """What makes stored identities mean something else."""
    for name, fields in before.items():
        if name not in after:
            yield f"{name} is gone"
        for field, value in fields.items() if name in after else ():
            if field not in after[name]:
                yield f"{name}.{field} is gone"
            elif after[name][field] != value:
                yield f"{name}.{field} was {value}, is {after[name][field]}"


def additions(before, after):
    """What the list does not have yet; a new field without a default is a change."""
    for name, fields in after.items():
        for field, value in {"": None, **fields}.items():
            if name not in before and not field:
                yield name, field, False
            elif name in before and field and field not in before[name]:
                yield name, field, value == REQUIRED


def complaints(stored, after):
    """What is wrong with the list, and what to do."""
    if stored["form"] != FORM:
        return [f"The form is {FORM}, the list is of {stored['form']}: run `{COMMAND}`."]
    new = list(additions(stored["classes"], after))
    changed = [*changes(stored["classes"], after), *(f"{c}.{f} is required, and new" for c, f, wrong in new if wrong)]
    fresh = [f"{c}.{f}" if f else c for c, f, wrong in new if not wrong]
    out = [
        f"{what}: restore it, or raise FORM in phalanx/runs/canonical.py and migrate all records." for what in changed
    ]
    return out + [f"{what} is new: run `{COMMAND}` and commit defaults.json." for what in fresh]


@pytest.mark.exports
def test_no_default_has_changed():
    assert complaints(json.loads(STORED.read_text()), json.loads(json.dumps(found()))) == []


@pytest.mark.exports
def test_every_class_of_a_run_is_exported_by_a_package_or_declares_its_name():
    hidden = [
        name
        for kind in classes()
        if PUBLIC_NAME not in vars(kind)
        for name in [public_name(kind)]
        if not hasattr(importlib.import_module(name.rpartition(".")[0]), "__path__")
    ]
    assert hidden == [], f"export them (`{COMMAND}`), or declare `{PUBLIC_NAME}: ClassVar[str]`"


def test_no_two_classes_share_a_name():
    assert len(found()) == len(classes())


@pytest.mark.parametrize(
    ("after", "what"),
    [
        ({"A": {"x": 1, "y": "<required>"}}, ""),
        ({"A": {"x": 2, "y": "<required>"}}, "A.x was 1, is 2: restore it, or raise FORM"),
        ({"A": {"x": 1}}, "A.y is gone: restore it, or raise FORM"),
        ({}, "A is gone: restore it, or raise FORM"),
        ({"A": {"x": 1, "y": "<required>", "z": "<required>"}}, "A.z is required, and new: restore it, or raise FORM"),
        ({"A": {"x": 1, "y": "<required>", "z": None}}, "A.z is new: run `make generated`"),
        ({"A": {"x": 1, "y": "<required>"}, "B": {}}, "B is new: run `make generated`"),
    ],
)
def test_changes_and_additions_are_named_with_what_to_do(after, what):
    said = complaints({"form": FORM, "classes": {"A": {"x": 1, "y": "<required>"}}}, after)
    assert (len(said) == 1 and said[0].startswith(what)) if what else said == []


def add():
    """Write the list: what is new, and everything where the form is."""
    stored = json.loads(STORED.read_text()) if STORED.is_file() else {"form": 0, "classes": {}}
    after = found()
    if stored["form"] == FORM and (wrong := list(changes(stored["classes"], after))):
        sys.exit(
            "\n".join([*wrong, "Restore them, or raise FORM in phalanx/runs/canonical.py and migrate all records."])
        )
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(after[name])}" for name in sorted(after))
    STORED.write_text(f'{{"form": {FORM}, "classes": {{\n{lines}\n}}}}\n')


if __name__ == "__main__":
    add()
