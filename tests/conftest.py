"""The harness: no process may outlive the test that started it, and no skip hides what this machine can do."""
import ctypes
import os
import signal

import pytest

import spaces
import support

PR_SET_CHILD_SUBREAPER = 36


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: moves a lot of data")
    config.addinivalue_line("markers", "engine: depends on how a container engine does it; run with Docker and with Podman")
    # A shell without job control starts what it puts into the background with SIGINT ignored, which programs inherit: Ctrl-C would do nothing.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Orphans, daemons and grandchildren come to us instead of init: whatever a test starts stays below us,
    # however hard it tries to get away.
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise pytest.UsageError("prctl(PR_SET_CHILD_SUBREAPER): %s" % os.strerror(ctypes.get_errno()))


def pytest_sessionfinish():
    # Not only at exit: a worker of xdist is killed some seconds after this.
    support.remove_temporary()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item):
    outcome = yield
    report = outcome.get_result()
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("CI") == "true":
        report.outcome = "failed"
        report.longrepr = "skipped, and a skip fails in CI: %s" % (report.longrepr,)


def strangers():
    """Live processes below us that no shared driver accounts for."""
    table = support.below(os.getpid())
    allowed = set()
    for driver in support.shared_drivers:
        allowed.add(driver.pid)
        allowed.update(process.pid for process in driver.family(table))
    return {process.key: process for process in support.descendants(os.getpid(), table)
            if process.pid not in allowed}


@pytest.fixture(autouse=True)
def no_process_left():
    before = strangers()
    yield
    left = {}

    def gone():
        support.reap_orphans()
        left.clear()
        left.update((key, process) for key, process in strangers().items() if key not in before)
        return not left

    try:
        support.wait_until(gone, lambda: "processes left behind: %r" % list(left.values()),
                           min(10, support.DEADLINE))
    except AssertionError:
        for process in left.values():
            support.end_process(process)
        raise


@pytest.fixture
def drive():
    """Makes drivers that end with the test."""
    made = []

    def make(*flags, **options):
        driver = support.Driver(*flags, **options)
        made.append(driver)
        return driver

    yield make
    for driver in made:
        if driver.process.poll() is None:
            driver.close()
        elif not driver.process.stdout.closed:
            driver.kill()


@pytest.fixture(scope="session")
def redis():
    """One redis-server for all tests; each has a prefix of its own."""
    server = spaces.Redis()
    yield server
    server.close()


@pytest.fixture(params=["file", "redis"])
def storage(request, redis, tmp_path):
    """Flags of a fresh storage, one of each kind."""
    return ["--base", tmp_path / "base"] if request.param == "file" else ["--storage", redis.url(tmp_path.name)]


@pytest.fixture(scope="session")
def bare_python():
    return support.bare_python()


@pytest.fixture(scope="session")
def plain_python():
    """The libraries of full_python without IPython."""
    return support.plain_python()


@pytest.fixture(scope="session")
def full_python():
    """The interpreter with IPython, numpy, pandas and matplotlib."""
    for module in ("IPython", "numpy", "pandas", "matplotlib"):
        assert support.module_version(support.PYTHON,
                                      module), "WORKCELL_TEST_PYTHON=%s has no %s" % (support.PYTHON, module)
    return support.PYTHON
