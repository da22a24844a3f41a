"""--embeddings builtin with the real model, which scripts/model.sh has put into build/model: stage `model` of soak."""
import json
import os
import subprocess
import sys

import pytest

import spaces
import support

MODEL = os.path.join(support.ROOT, "build", "model")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    env = support.host_environment(XDG_DATA_HOME=str(tmp_path_factory.mktemp("data")))
    done = support.workcell("models", "install", MODEL, env=env)
    assert done.status == 0, done
    return env


def test_meaning_is_found_where_no_word_is_shared(home, tmp_path):
    base = spaces.write_files(tmp_path / "base", {
        "workflows/%s.py" % name: '"""%s."""\n\n\ndef run(x: str):\n    return x\n' % text
        for name, text in {"rent_car": "Offers for a car at the airport", "predict": "The weather of tomorrow in a city",
                           "accounting": "Adds up the bill of each customer"}.items()})
    # On a busy machine the first search does not wait until the model is loaded.
    code = """
import time
def first(query):
    end = time.monotonic() + 60
    while True:
        found = workflows.search(query)
        if found or time.monotonic() > end: # no word is shared: it is found by its meaning
            return found[0]["name"]
[first(query) for query in ("hire an automobile", "will it rain", "sum of invoices", "vehicle \U0001f697")]
"""
    done = support.workcell("run", "--json", "--base", base, "--embeddings", "builtin", "-e", code, env=home)
    assert done.status == 0 and done.result["value"] == ["rent_car", "predict", "accounting", "rent_car"], done


def test_the_ranking_of_sixty_questions(home):
    done = subprocess.run([sys.executable, os.path.join(support.ROOT, "bench", "ranking.py"), "--json"], env={**home, "WORKCELL_BIN": support.BIN},
                          capture_output=True, text=True, check=True)
    rows = json.loads(done.stdout)
    assert rows["builtin"]["recall@3"] >= 0.9 and rows["builtin"]["mrr"] >= 0.84, rows
    assert rows["words"]["recall@3"] < rows["builtin"]["recall@3"]


def test_a_library_that_is_none(home, tmp_path):
    """Words alone, and the reason on stderr."""
    parts = spaces.write_files(tmp_path / "parts", {"a.onnx": "no model", "a-tokenizer.json": "{}", "libonnxruntime.so": "no library"})
    assert support.workcell("models", "install", parts, "--name", "broken", env=home).status == 0
    base = spaces.write_files(tmp_path / "base", {"workflows/w.py": '"""Weather."""\n\n\ndef run():\n    return 1\n'})
    done = support.workcell("workflows", "search", "weather", "--json", "--base", base, "--embeddings", "broken", env=home)
    assert done.status == 0 and done.objects[0][0]["ranking"] == "words" and "the tokenizer has no vocabulary" in done.err, done
