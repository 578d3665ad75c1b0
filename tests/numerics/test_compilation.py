"""Where Numba keeps what it compiles, and the notice before it does."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from numba import njit
from numba.core import caching

from phalanx.cli import doctor
from phalanx.numerics import compilation as compilations
from phalanx.numerics import kernels
from phalanx.numerics.compilation import NOT_KEPT, REMEDY, compilation, compiling, kept_in

RUN = "run --clients 2 --model.hidden [] --until.steps 1 --folder run"
MOUNTS = """
mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && mount -t tmpfs -o ro none "$HOME" || exit 77
shift
exec "$@"
"""


def test_without_a_place_for_it_code_is_compiled_in_each_process_and_a_warning_says_so_once(monkeypatch, caplog):
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])
    compilations._warn.cache_clear()
    with caplog.at_level(logging.WARNING, "phalanx"):
        made = [compiling(nogil=True)(function) for function in (lambda x: x + 1, lambda x: x + 2)]
    assert [record.message for record in caplog.records] == [f"{NOT_KEPT} {REMEDY}"]
    assert [function(1) for function in made] == [2, 3]
    assert [kept_in(function) for function in made] == [None, None]
    monkeypatch.setattr(kernels, "inner_products", made[0])
    (found,) = doctor.kept()
    assert (found.level, "NUMBA_CACHE_DIR" in found.remedy) == ("warning", True)


def test_where_code_is_kept_is_said():
    (found,) = doctor.kept()
    assert (found.level, found.what) == ("ok", f"kept in {kept_in(kernels.inner_products)}")


@pytest.mark.slow
@pytest.mark.parametrize("command", [RUN, "doctor"])
def test_on_a_disk_that_is_read_only_commands_work(command, tmp_path):
    """With a home that cannot be written to either, as in a container whose disk is read only."""
    source, home = Path(compilations.__file__).parents[2], tmp_path / "home"
    home.mkdir()
    words = [sys.executable, "-B", "-m", "phalanx", *command.split()]
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", MOUNTS, "sh", str(source), *words], cwd=tmp_path, timeout=300, check=False,
        env={**environment, "HOME": str(home), "MPLCONFIGDIR": str(tmp_path)}, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("nothing can be mounted here")
    assert done.returncode == 0, done.stderr
    assert NOT_KEPT in done.stdout + done.stderr


def test_it_comes_once_and_only_where_something_is_compiled():
    one, other = njit(lambda x: x + 1), njit(lambda x: x + 2)
    seen = list[str]()
    with compilation(lambda: seen.append("first")):
        assert not seen
        one(1)
        other(1)
    with compilation(lambda: seen.append("second")):
        one(2)
    other(1.5)
    assert seen == ["first"]
