"""Classes that other processes cannot import are named before they are sent."""

import pickle
import subprocess
import sys
from types import ModuleType

import pytest

from phalanx.core import InfeasibleError
from phalanx.processes import _Pickler

PROGRAM = """
from dataclasses import dataclass
from phalanx import Run, Study, Until
from phalanx.aggregators import Median

@dataclass(frozen=True)
class Mine(Median):
    pass

if __name__ == "__main__":
    base = Run(clients=3, until=Until(1))
    print(Study(base, {"algorithm.aggregate": [Mine()]}, seeds=1).run("here"))
"""


@pytest.mark.slow
@pytest.mark.parametrize("form", ["prompt", "script"])
def test_a_class_of_a_notebook_or_a_prompt_is_refused_and_one_of_a_script_is_not(form, tmp_path):
    (tmp_path / "mine.py").write_text(PROGRAM)
    words = ["mine.py"] if form == "script" else ["-c", (tmp_path / "mine.py").read_text()]
    done = subprocess.run([sys.executable, *words], cwd=tmp_path, check=False, capture_output=True, text=True)
    if form == "script":
        assert done.returncode == 0, done.stderr
    else:
        last = done.stderr.strip().splitlines()[-1]
        assert "InfeasibleError: Mine was defined in a notebook or at a prompt" in last
        assert "Process Spawn" not in done.stderr, "no process has died"


@pytest.mark.slow
def test_a_script_that_starts_processes_when_it_is_read_is_told_what_is_missing(tmp_path):
    script = tmp_path / "mine.py"
    script.write_text(PROGRAM.replace('if __name__ == "__main__":', "if True:").replace("seeds=1", "seeds=2"))
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, check=False, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 1
    *_, last = done.stderr.strip().splitlines()
    assert last.startswith("ConnectionError: 3 processes in a row ended before they were ready")
    assert "below the line `if __name__ == '__main__':`" in last
    assert done.stderr.count("InfeasibleError: A script that starts processes does so below") == 3


@pytest.mark.parametrize("kind", ["class", "function", "only words"])
def test_what_is_looked_for_are_names_and_no_words(kind, monkeypatch):
    main = ModuleType("__main__")
    exec("class Mine:\n    pass\n\ndef mine():\n    pass", main.__dict__)
    monkeypatch.setitem(sys.modules, "__main__", main)
    sent = {"class": {"a": [main.Mine()]}, "function": {"a": main.mine}, "only words": ["__main__", "Mine", "mine"]}[
        kind
    ]
    if kind == "only words":
        assert pickle.loads(_Pickler.dumps(sent)) == sent
    else:
        with pytest.raises(InfeasibleError, match=f"{'Mine' if kind == 'class' else 'mine'} was defined in a notebook"):
            _Pickler.dumps(sent)
