import pytest

from chromium import Browser


@pytest.fixture
def browser(tmp_path):
    made = Browser(tmp_path / "profile")
    try:
        yield made
    finally:
        made.close()
