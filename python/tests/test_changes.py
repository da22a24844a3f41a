"""Results that name the variables that their cell changed."""
import pytest

from workcell.sync import Session


@pytest.mark.parametrize("executor", ["subprocess", "sandbox"])
def test_added_changed_removed(executor, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Session(None, executor, changes=True) as session:
        assert session.run("a = 1.5; b = [1]; c = {}; import os").changes == {"added": ["a", "b", "c", "os"], "changed": [], "removed": [], "more": 0}
        assert session.run("a = 2.5; a = 3.5; b.append(2); d = 4").changes == {"added": ["d"], "changed": ["a", "b"], "removed": [], "more": 0}
        assert session.run("del a; 1 / 0").changes == {"added": [], "changed": [], "removed": ["a"], "more": 0}
        assert session.run("d; _hidden = 1").changes == {"added": [], "changed": [], "removed": [], "more": 0}


def test_no_code_of_the_session_runs_and_the_list_is_bounded():
    code = ("ran = []\nclass Odd(list):\n    def __len__(self): ran.append(1); return 5\n    def __eq__(self, other): ran.append(2); return True\n"
            "    def __hash__(self): ran.append(3); return 1\nclass Meta(type):\n    def __hash__(cls): ran.append(4); return 1\n"
            "    def __eq__(cls, other): ran.append(5); return True\nclass Other(metaclass=Meta): pass\nodd = Odd(); other = Other()")
    with Session(changes=True) as session:
        session.run(code).raise_for_error()
        session.run("odd = odd; more = 1").raise_for_error()
        assert session.run("ran").value == []
        found = session.run("for i in range(250): globals()['name%03d' % i] = i").changes
        assert len(found["added"]) == 100 and found["more"] == 151  # i as well


def test_without_the_option_nothing_is_said():
    with Session() as session:
        assert session.run("a = 1").changes is None
