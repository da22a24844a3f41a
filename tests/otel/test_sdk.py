"""The Python package in a program that records spans: they are children of the program's, and leave by its own exporter."""
import os
import subprocess
import sys

import pytest

import serving
import support

sys.path.insert(0, os.path.dirname(__file__))
from test_collector import COLLECTOR, attributes, collector  # noqa: E402, F401

sys.path.insert(0, os.path.join(support.ROOT, "tests", "mcp"))
import peers  # noqa: E402

PYTHON = os.path.join(support.ROOT, "build", "otel-venv", "bin", "python")
pytestmark = pytest.mark.skipif(not os.path.exists(PYTHON) or not os.path.exists(COLLECTOR), reason="needs scripts/setup.sh otel")
BEGIN = """
import asyncio, sys
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=sys.argv[1] + "/v1/traces")))
trace.set_tracer_provider(provider)
tracer = trace.get_tracer("the program")
"""
CELLS = """
from workcell.sync import Session
with Session.from_base(sys.argv[2]) as session:
    session.run("silent = 1")  # no span of the program: none of ours
    with tracer.start_as_current_span("agent"):
        session.run("tools.s.echo(text='x')").raise_for_error()
        assert session.run("1 / 0").error
        fork, = session.fork(1)
        with fork:
            assert fork.run("silent").value == 1
async def main():
    import workcell
    with tracer.start_as_current_span("other agent"):
        async with workcell.Session.from_base(sys.argv[2]) as session:
            await session.run("2")
            async for event in session.stream("3"): pass
            try:
                await asyncio.wait_for(session.run("import time\\nwhile True: time.sleep(0.01)"), 0.5)
            except asyncio.TimeoutError:
                pass
asyncio.run(main())
provider.shutdown()
"""
AGENT = """
from pydantic_ai import Agent, FunctionToolset
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel
from workcell.integrations.pydantic_ai import CodeModeToolset
def price(item: str) -> float:
    return {"tea": 4.5}[item]
def model(messages, info):
    if len(messages) == 1:
        return ModelResponse([ToolCallPart("run_code", {"code": "price(item='tea')"})])
    return ModelResponse([TextPart("done")])
async def main():
    agent = Agent(FunctionModel(model), toolsets=[CodeModeToolset(FunctionToolset([price]))], name="shopper")
    agent.instrument = True
    Agent.instrument_all()
    assert (await agent.run("What does tea cost?")).output == "done"
asyncio.run(main())
provider.shutdown()
"""

# OpenInference's processor of the SDK's own traces.
OPENAI_AGENTS = """
import json
from agents import Agent, Model, ModelResponse, Runner, Usage, function_tool
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText
from openinference.instrumentation.openai_agents import OpenAIAgentsInstrumentor
from workcell.integrations.openai_agents import WorkcellCodeTool
OpenAIAgentsInstrumentor().instrument(tracer_provider=provider)
class Replay(Model):
    turns = 0
    async def get_response(self, *args, **options):
        self.turns += 1
        if self.turns < 3:
            output = ResponseFunctionToolCall(type="function_call", call_id="call_%d" % self.turns, name="run_code", arguments=json.dumps({"code": "price(item='tea')"}))
        else:
            output = ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[ResponseOutputText(type="output_text", text="done", annotations=[])])
        return ModelResponse(output=[output], usage=Usage(), response_id=None)
    def stream_response(self, *args, **options):
        raise NotImplementedError
@function_tool
async def price(item: str) -> float:
    \"\"\"The price of an item.\"\"\"
    return {"tea": 4.5}[item]
async def main():
    async with WorkcellCodeTool([price]) as code:
        assert (await Runner.run(Agent(name="shopper", model=Replay(), tools=[code.tool]), "What does tea cost?")).final_output == "done"
asyncio.run(main())
provider.shutdown()
"""
# OpenInference's tracer of LangChain's callbacks: it sets no current span.
LANGCHAIN = """
from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from openinference.instrumentation.langchain import LangChainInstrumentor
from workcell.integrations.langchain import WorkcellCodeTool
LangChainInstrumentor().instrument(tracer_provider=provider)
class Replay(FakeMessagesListChatModel):
    def bind_tools(self, tools, **options):
        return self
@tool
def price(item: str) -> float:
    \"\"\"The price of an item.\"\"\"
    return {"tea": 4.5}[item]
def agent(code):
    ask = AIMessage("", tool_calls=[{"name": "run_code", "args": {"code": "price(item='tea')"}, "id": "call"}])
    return create_agent(Replay(responses=[ask, AIMessage("done")]), tools=[code.tool], name="shopper")
question = {"messages": [{"role": "user", "content": "What does tea cost?"}]}
with WorkcellCodeTool([price]) as code:
    if sys.argv[2] == "async":
        asyncio.run(agent(code).ainvoke(question))
    else:
        agent(code).invoke(question)
provider.shutdown()
"""

REMOTE = """
import workcell.sync
from workcell import ContainerExecutor
with workcell.sync.Session.scratch(ContainerExecutor(remote_url=sys.argv[2], auth_token=sys.argv[3])) as session:
    with tracer.start_as_current_span("agent"):
        assert session.run("6 * 7").value == 42
provider.shutdown()
"""


def program(text, *args):
    path = os.path.join(support.ROOT, "build", "python-site")
    done = subprocess.run([PYTHON, "-c", BEGIN + text, *map(str, args)], env=dict(os.environ, PYTHONPATH=path), capture_output=True, timeout=support.DEADLINE)
    assert done.returncode == 0, done.stderr.decode()


def ancestors(spans, span):
    """The names of a span and of those above it."""
    byid = {each["spanId"]: each for each in spans}
    names = []
    while span:
        names.append(span["name"])
        span = byid.get(span.get("parentSpanId"))
    return names


def test_cells_are_children_of_the_programs_span(collector, tmp_path):  # noqa: F811
    peers.write_server(tmp_path / "base", "s", **peers.scripted())
    program(CELLS, collector.url, tmp_path / "base")
    support.wait_until(lambda: {"agent", "other agent", "mcp"} <= {span["name"] for span in collector.sink.spans()}, lambda: collector.said())
    spans = collector.sink.spans()
    cells = [span for span in spans if span["name"] == "cell"]
    chains = sorted(ancestors(spans, span) for span in cells)
    assert chains == [["cell", "run", "agent"]] * 3 + [["cell", "run", "other agent"]] * 3
    request = next(span for span in spans if span["name"] == "mcp")
    assert ancestors(spans, request) == ["mcp", "tool", "cell", "run", "agent"]
    failed = [span for span in cells if span["status"].get("code") == 2]
    assert [attributes(span)["exception.type"] for span in failed] == ["ZeroDivisionError"]
    linked = [span for span in cells if span.get("links")]
    assert len(linked) == 1 and linked[0]["links"][0]["spanId"] == failed[0]["spanId"], "the fork's cell, to the last one of its source"
    assert not any("silent" in str(span) for span in spans)


def test_a_tool_call_is_a_child_of_the_agents_span(collector):  # noqa: F811
    program(AGENT, collector.url)
    support.wait_until(lambda: any("shopper" in span["name"] or "agent" in span["name"] for span in collector.sink.spans()), lambda: collector.said())
    spans = collector.sink.spans()
    call = next(span for span in spans if span["name"] == "tool")
    chain = ancestors(spans, call)
    assert chain[:3] == ["tool", "cell", "run"] and len(chain) >= 5, chain
    assert "run_code" in chain[3] and "agent" in chain[-1], chain
    assert len({span["traceId"] for span in spans}) == 1


def test_openai_agents_with_openinference(collector):  # noqa: F811
    program(OPENAI_AGENTS, collector.url)
    support.wait_until(lambda: any(span["name"] == "tool" for span in collector.sink.spans()), lambda: collector.said())
    spans = collector.sink.spans()
    calls = [ancestors(spans, span) for span in spans if span["name"] == "tool"]
    assert len(calls) == 2 and all(chain[:4] == ["tool", "cell", "run", "run_code"] and "shopper" in chain[4:] for chain in calls), calls
    assert len({span["traceId"] for span in spans}) == 1


@pytest.mark.parametrize("way", ["sync", "async"])
def test_langchain_with_openinference(collector, way):  # noqa: F811
    program(LANGCHAIN, collector.url, way)
    support.wait_until(lambda: any(span["name"] == "tool" for span in collector.sink.spans()), lambda: "only %r, %s" % ([span["name"] for span in collector.sink.spans()], collector.said()))
    spans = collector.sink.spans()
    chain = ancestors(spans, next(span for span in spans if span["name"] == "tool"))
    assert chain[:4] == ["tool", "cell", "run", "run_code"] and chain[-1] == "shopper", chain
    assert len({span["traceId"] for span in spans}) == 1


def test_mcp_servers_belong_to_the_cell(collector, tmp_path):  # noqa: F811
    """The span of the request is made by OpenTelemetry's SDK when it is over: the server is told the cell's."""
    peers.write_server(tmp_path / "base", "s", **peers.scripted(log=tmp_path / "calls"))
    program(CELLS, collector.url, tmp_path / "base")
    support.wait_until(lambda: {"agent", "other agent", "mcp"} <= {span["name"] for span in collector.sink.spans()}, lambda: collector.said())
    spans = {span["spanId"]: span for span in collector.sink.spans()}
    request = next(span for span in spans.values() if span["name"] == "mcp")
    cell = spans[spans[request["parentSpanId"]]["parentSpanId"]]
    given = peers.messages(tmp_path / "calls", "tools/call")[0]["params"]["_meta"]["traceparent"]
    assert given == "00-%s-%s-01" % (cell["traceId"], cell["spanId"])


def test_the_server_of_the_executor_remote_goes_on_with_the_trace(collector):  # noqa: F811
    server = serving.Server("--executor", "subprocess", "--otlp", collector.url)
    try:
        program(REMOTE, collector.url, "http://127.0.0.1:%d" % server.port, serving.TOKEN)
        support.wait_until(lambda: len([span for span in collector.sink.spans() if span["name"] == "cell"]) == 2, lambda: collector.said())
    finally:
        server.close()
    spans = collector.sink.spans()
    chains = sorted(ancestors(spans, span) for span in spans if span["name"] == "cell")
    assert chains == [["cell", "run", "agent"], ["cell", "run", "cell", "run", "agent"]]
