"""Classes that other processes cannot import are named before they are sent."""

import os
import pickle
import subprocess
import sys
import time
from types import ModuleType

import pytest

from phalanx.core import InfeasibleError
from phalanx.pool import Done
from phalanx.processes import CONTEXT, STILLBORN, Processes, _Pickler

NEAR = "def rounds():\n    return 1\n"
PROGRAM = """
import sys
from dataclasses import dataclass
from phalanx import Run, Study, Until
from phalanx.aggregators import Median

@dataclass(frozen=True)
class Mine(Median):
    pass

if __name__ == "__main__":
    from near import rounds
    base = Run(clients=3, until=Until(rounds()))
    study = Study(base, {"algorithm.aggregate": [Mine()]}, seeds=1)
    study.run("here")
    print("found again:", len(study.results("here").rows), file=sys.stderr)
"""


@pytest.mark.slow
@pytest.mark.parametrize("form", ["prompt", "script"])
def test_a_class_of_a_notebook_or_a_prompt_is_refused_and_one_of_a_script_is_not(form, tmp_path):
    (tmp_path / "mine.py").write_text(PROGRAM)
    (tmp_path / "near.py").write_text(NEAR)
    words = ["mine.py"] if form == "script" else ["-c", (tmp_path / "mine.py").read_text()]
    done = subprocess.run([sys.executable, *words], cwd=tmp_path, check=False, capture_output=True, text=True)
    if form == "script":
        assert done.returncode == 0, done.stderr
        assert "found again: 1" in done.stderr, "its source is that of the script, in the script as in its processes"
    else:
        last = done.stderr.strip().splitlines()[-1]
        assert "InfeasibleError: Mine was defined in a notebook or at a prompt" in last
        assert "Process Spawn" not in done.stderr, "no process has died"


@pytest.mark.slow
def test_a_script_that_starts_processes_when_it_is_read_is_told_what_is_missing(tmp_path):
    script = tmp_path / "mine.py"
    (tmp_path / "near.py").write_text(NEAR)
    script.write_text(PROGRAM.replace('if __name__ == "__main__":', "if True:").replace("seeds=1", "seeds=2"))
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, check=False, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 1
    *_, last = done.stderr.strip().splitlines()
    assert last.startswith("ConnectionError: 3 processes in a row ended before they were ready")
    assert "below the line `if __name__ == '__main__':`" in last
    assert done.stderr.count("InfeasibleError: A script that starts processes does so below") == 3


class Unborn(Processes):
    """Processes of which the first begins, and later ones die at once."""

    def begin(self, task):
        self.begun = getattr(self, "begun", 0) + 1
        if self.begun == 1:
            return super().begin(task)
        here, there = CONTEXT.Pipe()
        process = CONTEXT.Process(target=os._exit, args=(3,), daemon=True)
        process.start()
        there.close()
        self.processes[here] = process
        return here


def late(job, say):
    time.sleep(job)
    return job


@pytest.mark.slow
def test_beside_one_that_works_processes_that_die_are_not_started_without_end():
    with Unborn(2, late) as pool:
        done = [event.result for event in pool.do([6.0, 0.1], 0.1) if isinstance(event, Done)]
    assert done == [6.0, 0.1]
    assert 1 + STILLBORN <= pool.begun <= 1 + 2 * STILLBORN, "counted again when the first one is ready"
    assert "status 3, before it was ready." in pool._why
    assert "__main__" not in pool._why, "it is no error of Python's"


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
