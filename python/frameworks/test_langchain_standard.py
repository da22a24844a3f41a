"""LangChain's own tests (langchain-tests) of tools and of deepagents' sandboxes, with ours."""
import inspect

import pytest

pytest.importorskip("langchain_tests")
from langchain_tests.integration_tests import SandboxIntegrationTests, ToolsIntegrationTests  # noqa: E402
from langchain_tests.unit_tests import ToolsUnitTests  # noqa: E402

from workcell.integrations.deepagents import WorkcellSandbox  # noqa: E402
from workcell.integrations.langchain import WorkcellCodeTool  # noqa: E402

for suite in (ToolsUnitTests, ToolsIntegrationTests, SandboxIntegrationTests):
    for each in vars(suite).values():
        if inspect.iscoroutinefunction(each):
            pytest.mark.asyncio(each)  # they rely on a setting of pytest that is not ours

# The suite (1.1.9) is older than the protocol of deepagents (0.7), which says the opposite: docs/frameworks/langchain.md.
OLDER = {"test_glob", "test_glob_basic_pattern", "test_glob_hidden_files_explicitly", "test_glob_with_character_class",
         "test_glob_with_question_mark", "test_glob_with_directories", "test_write_existing_file_fails"}


def price(item: str) -> float:
    """The price of an item in the shop."""
    return {"tea": 4.5}[item]


class Tool:
    """What both suites ask of a tool: an instance, and arguments that it can be called with."""

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def opened(cls):
        with WorkcellCodeTool([price]) as cls.code:
            yield

    @property
    def tool_constructor(self):
        return self.code.tool

    @property
    def tool_invoke_params_example(self):
        return {"code": "price('tea') * 2"}


class TestToolUnit(Tool, ToolsUnitTests):
    pass


class TestToolIntegration(Tool, ToolsIntegrationTests):
    pass


class TestSandbox(SandboxIntegrationTests):
    @pytest.fixture(autouse=True)
    def not_older(self, request):
        if request.node.name in OLDER:
            request.applymarker(pytest.mark.xfail(strict=True, raises=AssertionError, reason="the suite is older than the protocol"))

    @pytest.fixture(scope="class")
    @classmethod
    def sandbox(cls):
        with WorkcellSandbox() as made:
            yield made
