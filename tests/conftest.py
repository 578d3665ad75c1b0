"""What holds for every test: types and shapes are checked while it runs."""

import gc
import logging
import os
import shutil

import pytest
import torch
from hypothesis import HealthCheck, settings

import typechecking

typechecking.check("phalanx")
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


def pytest_collection_modifyitems(items):
    """Let tests that wait for processes begin first, one after the other, so that none of them is the last."""
    items.sort(key=lambda item: item.get_closest_marker("waits") is None)


def pytest_collection_finish():
    """Let Python's garbage collector pass over ten thousand tests, and come less often.

    The same for pytest's record of messages, which is hung in and taken out of each logger that keeps its messages to
    itself, three times a test: torch has 39 of them.
    """
    for name, logger in logging.root.manager.loggerDict.items():
        if name.startswith("torch") and isinstance(logger, logging.Logger):
            logger.propagate = True
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def pytest_runtest_setup():
    typechecking.begin()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    """One process more than processors, since many tests wait for a deadline; no more than 8, which take 8 GB."""
    if (wanted := os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS")) is not None:
        return int(wanted)
    free = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(8, free + 1)


def _threads(count):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def one_thread():
    """One thread of torch, as in the processes of the commands."""
    yield from _threads(1)


@pytest.fixture
def two_threads():
    """Two threads of torch, on any machine."""
    yield from _threads(2)


@pytest.fixture(scope="session")
def browser():
    """A real browser without a window."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("no Chromium on this machine: looked for chromium, chromium-browser and google-chrome")
    arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        yield browser
        browser.close()
