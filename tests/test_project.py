"""What strangers look for: that its files agree with each other, and that their links lead somewhere."""

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

import phalanx

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOW = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
RELEASE = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())
DECISIONS = sorted((ROOT / "docs/decisions").glob("[0-9]*.md"))
FORMS = sorted(path for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config")


def test_the_workflow_calls_steps_of_the_script():
    commands = [step["run"] for job in WORKFLOW["jobs"].values() for step in job["steps"] if "run" in step]
    called = {word for command in commands if ".ci/run" in command for word in command.split()[2:]}
    known = set(re.search(r"^known=\((.*)\)$", (ROOT / ".ci/run").read_text(), re.MULTILINE)[1].split())
    assert called == known


def test_the_workflow_tests_the_versions_of_python_that_are_promised():
    promised = {c.rsplit(" ", 1)[1] for c in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", c)}
    assert set(WORKFLOW["jobs"]["tests"]["strategy"]["matrix"]["python-version"]) == promised


def test_an_unknown_step_is_refused():
    done = subprocess.run(["bash", ROOT / ".ci/run", "tests"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "There is no step 'tests'. Steps are: system install lint" in done.stderr


def test_the_citation_names_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == phalanx.__version__
    assert citation["license"] == PROJECT["license"]
    assert citation["repository-code"] == PROJECT["urls"]["Repository"]
    page = (ROOT / "docs" / "README.md").read_text()
    assert f"version = {{{citation['version']}}}" in page
    assert all(f"`{name}`" in page for name in ("ClusteredFL", "ByzantineCFL", "Truncate", "Catalyst", "RFFL"))


def test_the_tag_of_this_version_would_pass_the_first_step_of_its_release():
    (script,) = [
        step["run"] for step in RELEASE["jobs"]["build"]["steps"] if step.get("name", "").startswith("The tag")
    ]
    environment = {**os.environ, "GITHUB_REF_NAME": f"v{phalanx.__version__}"}
    assert subprocess.run(["bash", "-e", "-c", script], cwd=ROOT, env=environment, check=False).returncode == 0
    environment["GITHUB_REF_NAME"] = "v0.0.0"
    assert subprocess.run(["bash", "-e", "-c", script], cwd=ROOT, env=environment, check=False).returncode == 1


def test_every_decision_is_listed_once_and_in_order():
    listed = re.findall(
        r"^\| \[(\d+)\]\((.*)\) \| (.*) \|$", (ROOT / "docs/decisions/README.md").read_text(), re.MULTILINE
    )
    assert [name for _, name, _ in listed] == [path.name for path in DECISIONS]
    for (number, _, title), path in zip(listed, DECISIONS, strict=True):
        text = path.read_text()
        assert text.startswith(f"# {number}. {title}\n")
        assert re.findall(r"^## (\w+)$", text, re.MULTILINE)[:3] == ["Context", "Decision", "Consequences"]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.stem)
def test_a_form_asks_for_what_is_needed(form):
    asked = yaml.safe_load(form.read_text())
    assert {"name", "description", "body"} <= asked.keys()
    identities = [part["id"] for part in asked["body"] if part["type"] != "markdown"]
    assert len(identities) == len({*identities})
    assert any(part.get("validations", {}).get("required") for part in asked["body"])


def test_no_page_installs_from_an_index_that_does_not_have_it():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.py")]
    named = [page.name for page in pages if re.search(r"pip install '?phalanx-fl", page.read_text())]
    assert named in ([], ["installation.py"])
