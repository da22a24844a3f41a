"""Recordings of sessions, and their replays, from Python."""
import asyncio
import json
import pathlib

import pytest

import workcell
from workcell import CodeModeError
from workcell.sync import Session


def test_a_tool_is_asked_once_and_then_answered_from_the_recording(tmp_path):
    asked = []

    def temperature(city: str) -> float:
        """The temperature in a city."""
        asked.append(city)
        return 20.0 + len(asked)

    with Session(record=tmp_path / "r.jsonl", tools=[temperature]) as session:
        assert session.run("tools.temperature(city='Oslo')").value == 21.0
        assert session.run("[tools.temperature(city=each) for each in ('Oslo', 'Rome')]").value == [22.0, 23.0]
    found = workcell.replay(tmp_path / "r.jsonl")
    assert found == workcell.Replay(True, 2, 2, True, None)
    assert asked == ["Oslo", "Oslo", "Rome"]


def test_calls_that_overlap_are_matched_by_what_they_ask(tmp_path):
    async def main():
        async def wait(n: int) -> int:
            """Waits."""
            await asyncio.sleep(0.02 * (3 - n))
            return n * n

        async with workcell.Session(record=tmp_path / "r.jsonl", tools=[wait]) as session:
            code = "import asyncio\nawait asyncio.gather(*(tools.wait.call_async(n=n) for n in range(3)))"
            result = await session.run(code)
            assert result.value == [0, 1, 4], result
    asyncio.run(main())
    assert workcell.replay(tmp_path / "r.jsonl").same


def test_a_difference_says_where(tmp_path):
    file = tmp_path / "r.jsonl"
    with Session(record=file) as session:
        session.run("print('a\\nb')")
    lines = file.read_text().splitlines()
    lines[-1] = lines[-1].replace("a\\nb", "a\\nc")
    file.write_text("\n".join(lines) + "\n")
    found = workcell.replay(file)
    assert not found.same and found.difference == workcell.Difference(1, "stdout", 2, "a\nc\n", "a\nb\n")


def test_a_file_that_is_not_a_recording(tmp_path):
    file = tmp_path / "r.jsonl"
    with pytest.raises(CodeModeError) as caught:
        workcell.replay(file)
    assert caught.value.code == "not_found"
    file.write_text("no\n")
    with pytest.raises(CodeModeError) as caught:
        workcell.replay(file)
    assert caught.value.code == "damaged"


def test_a_failing_tool_and_its_error_are_repeated(tmp_path):
    def broken() -> None:
        """Fails."""
        raise ValueError("no luck")

    with Session(record=tmp_path / "r.jsonl", tools=[broken]) as session:
        assert "no luck" in session.run("try:\n    tools.broken()\nexcept Exception as exc:\n    print(exc)").stdout
    assert workcell.replay(tmp_path / "r.jsonl").same


def test_what_a_recording_has(tmp_path):
    with Session(record=tmp_path) as session:
        session.run("import time; time.time()")
        name = session.session_id
    kinds = [sorted(json.loads(line))[0] for line in pathlib.Path(tmp_path, name + ".jsonl").read_text().splitlines()]
    assert kinds == ["executor", "at_ms", "clock", "result"]
