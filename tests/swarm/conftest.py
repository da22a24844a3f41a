"""packaging/swarm on a Swarm of three engines (scripts/swarm_engines.py), which scripts/docker_engine.py gives the image."""
import os
import sys

import pytest

import support

sys.path.insert(0, os.path.join(support.ROOT, "scripts"))
sys.path.insert(0, os.path.join(os.path.dirname(support.BIN), "python-site"))


@pytest.fixture(autouse=True)
def no_process_left():
    """In place of the check after each test: nodes start and end containers as they like. What a node's process 1 leaves behind is nothing."""
