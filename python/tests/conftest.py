"""Tests of the Python SDK: of the package as the build folder has it that WORKCELL_BIN is in."""
import asyncio
import os
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
BUILD = os.path.dirname(os.path.abspath(os.environ.get("WORKCELL_BIN", os.path.join(ROOT, "build", "workcell"))))
DEADLINE = 60
SITE = os.path.join(BUILD, "python-site")
sys.path.insert(0, SITE)
os.environ["PYTHONPATH"] = SITE  # for programs that tests start


def run(coroutine, deadline=DEADLINE):
    """A coroutine to its end, on a loop of its own."""
    async def bounded():
        return await asyncio.wait_for(coroutine, deadline)

    return asyncio.run(bounded())


@pytest.fixture
def storage(tmp_path):
    import workcell

    made = workcell.FileStorage(tmp_path / "data")
    yield made
    made.close()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item):
    outcome = yield
    report = outcome.get_result()
    if report.skipped and os.environ.get("CI") == "true":
        report.outcome = "failed"
        report.longrepr = "skipped, and a skip fails in CI: %s" % (report.longrepr,)
