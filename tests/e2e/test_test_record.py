"""What scripts/run_tests.py keeps of a run: times that are compared, and tests that passed only at their second try."""
import importlib.util
import json
import os
import sys

import pytest

SCRIPTS = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "scripts")


@pytest.fixture
def scripts(tmp_path, monkeypatch):
    """{module name: a fresh module}, with files in a folder of their own."""
    monkeypatch.setattr(sys, "path", [SCRIPTS, *sys.path])
    modules = {}
    for name in ("test_record", "run_tests"):
        spec = importlib.util.spec_from_file_location(name, os.path.join(SCRIPTS, name + ".py"))
        modules[name] = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, modules[name])
        spec.loader.exec_module(modules[name])
    for name, file in (("TIMES", "times.json"), ("BASELINE", "baseline.json"), ("FLAKY", "flaky.json")):
        monkeypatch.setattr(modules["test_record"], name, str(tmp_path / file))
    return modules


def test_slower_stages_and_tests_are_named(scripts, tmp_path):
    record = scripts["test_record"]
    record.stages["unit"] = 100
    record.add_test("build", "slow", 40)
    record.add_test("build", "quick", 1)
    assert record.finish(True) == []
    kept = json.loads((tmp_path / "baseline.json").read_text())
    assert kept["stages"] == {"unit": 100} and kept["tests"] == {"build: slow": 40}
    assert record.expected_seconds("build", "slow") == 40 and record.expected_seconds("build", "quick") == 0
    record.stages["unit"] = 149
    assert record.finish(False) == []
    record.stages["unit"] = 151
    record.add_test("build", "slow", 61)
    lines = record.finish(False)
    assert len(lines) == 2 and "stage unit took 151 s" in lines[0] and "test build: slow took 61 s" in lines[1]
    assert json.loads((tmp_path / "times.json").read_text())["stages"] == {"unit": 151}
    assert json.loads((tmp_path / "baseline.json").read_text()) == kept


def test_second_try_is_named_and_kept(scripts, tmp_path, capsys):
    record, runner = scripts["test_record"], scripts["run_tests"]
    runner.again(["steady", "shaky"], lambda names: {"steady"}, "pytest on build")
    assert (runner.passed, runner.failed, runner.notes) == (1, 1, ["pytest on build: steady"])
    lines = record.finish(False)
    assert len(lines) == 1 and lines[0].startswith("flaky: shaky (pytest on build)")
    record.finish(False)
    kept = json.loads((tmp_path / "flaky.json").read_text())
    assert [each["test"] for each in kept] == ["shaky", "shaky"] and kept[0]["commit"] and kept[0]["date"]


def test_many_failures_are_not_tried_again(scripts):
    runner = scripts["run_tests"]
    runner.again([str(i) for i in range(11)], lambda names: set(), "x")
    assert runner.failed == 11 and not scripts["test_record"].flaky


def test_every_stage_belongs_to_a_tier(scripts):
    runner = scripts["run_tests"]
    written = {name for name in vars(runner) if name.startswith("stage_")}
    assert written == {"stage_" + name for name in runner.STAGES}


def test_lines_have_every_stage_of_the_tier_once(scripts):
    runner = scripts["run_tests"]
    in_lines = [name for group in runner.LINES for wanted in group.values() for name in wanted]
    assert sorted(in_lines + runner.SHARED) == sorted(stage.__name__[len("stage_"):] for stage in runner.TIERS["test"])
    queue = runner.share(runner.SHARED)
    one, other = runner.take_shared(queue), runner.take_shared(queue)
    taken = [next(one), next(other)] + list(one) + list(other)
    os.close(queue)
    assert taken == runner.SHARED
