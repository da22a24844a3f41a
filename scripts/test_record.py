"""What a run of the tests leaves behind for the next: how long stages and tests took, and which tests passed only at their second try.

    build/test-times.json   the last run's times
    tests/times.json        times to compare with, committed: of stages, and of tests that take long; run_tests.py --record writes it
    build/flaky.json        tests that failed and then passed alone, run after run; each is a bug whose cause is to be found
"""

import json
import os
import subprocess
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TIMES = os.path.join(ROOT, "build", "test-times.json")
BASELINE = os.path.join(ROOT, "tests", "times.json")
FLAKY = os.path.join(ROOT, "build", "flaky.json")
# Slower by both is worth a line: these machines differ, and are not alone.
FACTOR = 1.5
STAGE_SECONDS, TEST_SECONDS = 20, 10
# Faster tests are not listed in the committed file.
LISTED_SECONDS = 5

stages, tests, flaky = {}, {}, []


def load(path, otherwise):
    """A file that is missing or cut off (a run that was killed) counts as empty."""
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError):
        return otherwise


def save(path, value):
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump(value, file, indent=1, sort_keys=True)
        file.write("\n")
    os.replace(path + ".new", path)


def commit():
    done = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def add_test(where, name, seconds):
    """Of one test: the longest of its runs; where: "build" or "build-asan"."""
    key = "%s: %s" % (where, name)
    tests[key] = max(round(seconds, 2), tests.get(key, 0))


def add_flaky(where, name):
    flaky.append({"test": name, "where": where, "commit": commit(), "date": time.strftime("%Y-%m-%d %H:%M:%S")})


def expected_seconds(where, name):
    """What a test took when the times were recorded; 0 for those that are not listed."""
    return load(BASELINE, {}).get("tests", {}).get("%s: %s" % (where, name), 0)


def slower(kind, now, before, least):
    return ["slower: %s %s took %.0f s, tests/times.json has %.0f s" % (kind, name, seconds, before[name])
            for name, seconds in sorted(now.items())
            if name in before and seconds > before[name] * FACTOR and seconds > before[name] + least]


def finish(record):
    """Writes the files; the lines that a person should read. record: these times are those to compare with from now on."""
    before = load(BASELINE, {})
    lines = slower("stage", stages, before.get("stages", {}), STAGE_SECONDS) + slower("test", tests, before.get("tests", {}), TEST_SECONDS)
    whole = {"commit": commit(), "date": time.strftime("%Y-%m-%d"), "cores": os.cpu_count(), "stages": stages, "tests": tests}
    save(TIMES, whole)
    if record:
        listed = {name: seconds for name, seconds in tests.items() if seconds >= LISTED_SECONDS}
        # Stages that did not run keep what they had.
        save(BASELINE, dict(whole, stages={**before.get("stages", {}), **stages}, tests={**before.get("tests", {}), **listed}))
    if flaky:
        save(FLAKY, load(FLAKY, []) + flaky)
        lines += ["flaky: %s (%s) failed and passed at its second try; kept in build/flaky.json, its cause is to be found" % (each["test"], each["where"])
                  for each in flaky]
    return lines
