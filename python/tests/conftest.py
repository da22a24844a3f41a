"""Tests of the Python SDK: of the package as its wheel has it, made from the build folder that WORKCELL_BIN is in."""
import asyncio
import fcntl
import os
import sys
import zipfile

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
BUILD = os.path.dirname(os.path.abspath(os.environ.get("WORKCELL_BIN", os.path.join(ROOT, "build", "workcell"))))
DEADLINE = 60


def unpacked():
    """The wheel's files in the build folder; made anew when something in them is newer."""
    sys.path.insert(0, os.path.dirname(HERE))
    try:
        import backend
    finally:
        del sys.path[0]
    site = os.path.join(BUILD, "python-site")
    os.makedirs(site, exist_ok=True)
    with open(os.path.join(site, ".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = os.path.join(site, ".stamp")
        made = os.path.getmtime(stamp) if os.path.exists(stamp) else 0
        if max(os.path.getmtime(path) for _, path in backend._files(BUILD)) > made:
            os.environ["WORKCELL_BUILD_DIR"] = BUILD
            wheel = os.path.join(site, backend.build_wheel(site))
            del os.environ["WORKCELL_BUILD_DIR"]
            with zipfile.ZipFile(wheel) as archive:
                for info in archive.infolist():
                    path = os.path.join(site, info.filename)
                    os.makedirs(os.path.dirname(path), exist_ok=True)
                    with open(path + ".new", "wb") as file:
                        file.write(archive.read(info))
                    os.chmod(path + ".new", (info.external_attr >> 16) & 0o777 or 0o644)
                    os.replace(path + ".new", path)
            open(stamp, "w").close()
    return site


SITE = unpacked()
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
