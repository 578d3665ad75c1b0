"""The command that adds an extra: it must work where Phalanx came from."""

import importlib.metadata
import json
from types import SimpleNamespace

import pytest

from phalanx import installation as module
from phalanx.installation import installation

GIT = {"url": "https://example.org/phalanx.git", "vcs_info": {"vcs": "git", "commit_id": "0" * 40}}


@pytest.fixture
def installed(monkeypatch):
    """As if Phalanx was installed from there; `None` is a package index."""

    def pretend(source):
        recorded = None if source is None else json.dumps(source)
        monkeypatch.setattr(module, "distribution", lambda _: SimpleNamespace(read_text=lambda _: recorded))

    return pretend


def test_from_an_index(installed):
    installed(None)
    assert installation("flower") == "pip install 'phalanx-fl[flower]'"


def test_from_an_editable_checkout(installed, tmp_path):
    checkout = tmp_path / "a checkout"
    checkout.mkdir()
    installed({"url": checkout.as_uri(), "dir_info": {"editable": True}})
    assert installation("ray") == f"pip install -e '{checkout}[ray]'"


def test_from_a_checkout(installed, tmp_path):
    installed({"url": tmp_path.as_uri(), "dir_info": {}})
    assert installation("ray") == f"pip install 'phalanx-fl[ray] @ {tmp_path.as_uri()}'"


def test_from_a_checkout_that_is_gone(installed, tmp_path):
    installed({"url": (tmp_path / "gone").as_uri(), "dir_info": {"editable": True}})
    assert installation("ray") == "pip install '.[ray]' in a checkout of Phalanx"


@pytest.mark.parametrize(("revision", "after"), [(None, ""), ("v0.1.0", "@v0.1.0")])
def test_from_a_repository(installed, revision, after):
    asked = {} if revision is None else {"requested_revision": revision}
    installed(GIT | {"vcs_info": GIT["vcs_info"] | asked})
    assert installation("flower") == f"pip install 'phalanx-fl[flower] @ git+https://example.org/phalanx.git{after}'"


def test_not_installed_at_all(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(module, "distribution", missing)
    assert installation("flower") == "pip install '.[flower]' in a checkout of Phalanx"
