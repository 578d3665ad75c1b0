"""The tutorials: their notebooks run from the first cell to the last, and say what they said when they were written."""

import re
import shutil
from pathlib import Path

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")

FOLDER = Path(__file__).parents[1] / "docs" / "tutorials"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def said(notebook):
    """What each cell of code says, without keys, which are new each time, and numbers, which differ by processor."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    outputs = [sorted(cell.outputs, key=lambda o: o.get("name") == "stderr") for cell in cells]  # it comes when it can
    texts = ["".join(o.get("text") or o.get("data", {}).get("text/plain", "") for o in group) for group in outputs]
    texts = [re.sub(r"ed25519:\S+|(?:[0-9A-F]{2}:){31}[0-9A-F]{2}", "KEY", text) for text in texts]
    return [re.sub(r"[-\d.,% ]+", " ", text) for text in texts]


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # of Jupyter
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    shutil.copytree(FOLDER, tmp_path / "here")
    written, again = nbformat.read(path, 4), nbformat.read(path, 4)
    nbclient.NotebookClient(again, timeout=300, resources={"metadata": {"path": str(tmp_path / "here")}}).execute()
    assert said(again) == said(written)


def test_the_notebooks_are_kept_with_what_they_say():
    assert [path.stem for path in NOTEBOOKS] == ["federation", "hospitals", "own-rule"]
    for path in NOTEBOOKS:
        notebook = nbformat.read(path, 4)
        nbformat.validate(notebook)
        assert all(cell.execution_count for cell in notebook.cells if cell.cell_type == "code")
        assert not any(o.output_type == "error" for c in notebook.cells if c.cell_type == "code" for o in c.outputs)
