"""Tests of the adapters in workcell.integrations, each with the framework itself and a model that replays answers."""
import asyncio
import os
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
BUILD = os.path.dirname(os.path.abspath(os.environ.get("WORKCELL_BIN", os.path.join(ROOT, "build", "workcell"))))
sys.path.insert(0, os.path.join(BUILD, "python-site"))
# Frameworks that would like to report home, or wait for a tracer.
os.environ.update(OPENAI_AGENTS_DISABLE_TRACING="1", LANGSMITH_TRACING="false", DSPY_CACHEDIR=os.path.join(BUILD, "dspy-cache"),
                  LITELLM_LOCAL_MODEL_COST_MAP="True", PYTHONPATH=os.path.join(BUILD, "python-site"))


def run(coroutine, deadline=60):
    """A coroutine to its end, on a loop of its own."""
    async def bounded():
        return await asyncio.wait_for(coroutine, deadline)

    return asyncio.run(bounded())


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    """The working directory is never one that a sandbox must not write to."""
    monkeypatch.chdir(tmp_path)
