"""workcell.integrations.dspy: the protocol, and dspy.RLM with a model that replays answers."""
import functools
import os

import pytest

dspy = pytest.importorskip("dspy")
from dspy.primitives.code_interpreter import CodeExecutionError, CodeInterpreter, CodeInterpreterError, FinalOutput  # noqa: E402
from dspy.utils import DummyLM  # noqa: E402

from workcell.integrations.dspy import WorkcellInterpreter, WorkcellInterpreters  # noqa: E402


@pytest.fixture(scope="module")
def interpreter():
    with WorkcellInterpreter({"double": lambda number: 2 * number}) as made:
        yield made


def test_protocol(interpreter):
    assert isinstance(interpreter, CodeInterpreter)
    interpreter.start()
    assert interpreter.execute("x = 20\nprint('hello')") == "hello\n"
    assert interpreter.execute("double(x) + n", {"n": 2}) == 42
    assert interpreter.execute("y = 1") is None
    assert interpreter.execute("SUBMIT([1, 'a'])") == FinalOutput({"output": [1, "a"]})
    with pytest.raises(CodeExecutionError, match="ZeroDivisionError"):
        interpreter.execute("1 / 0")
    with pytest.raises(SyntaxError):
        interpreter.execute("def f(:")
    with pytest.raises(CodeExecutionError, match="one output value"):
        interpreter.execute("SUBMIT(1, 2)")
    with pytest.raises(CodeInterpreterError, match="cannot replace tools"):
        interpreter.execute("1", {"double": 1})
    with pytest.raises(CodeInterpreterError, match="cannot be given"):
        interpreter.execute("1", {"it": object()})
    interpreter.output_fields = [{"name": "a", "type": "int"}, {"name": "b"}]
    assert interpreter.execute("SUBMIT(a=1, b={'k': (1, 2)})") == FinalOutput({"a": 1, "b": {"k": [1, 2]}})
    with pytest.raises(CodeExecutionError, match="needs the fields a, b"):
        interpreter.execute("SUBMIT(a=1)")
    interpreter.output_fields = None
    interpreter.tools["triple"] = lambda number: 3 * number
    assert interpreter.execute("triple(2)") == 6
    del interpreter.tools["triple"]
    with pytest.raises(CodeExecutionError, match="no such tool any more"):
        interpreter.execute("triple(2)")


@pytest.mark.parametrize("code", [
    "class Evil:\n    def __reduce__(self): return (print, ())\n    def __repr__(self): return '\\x1b[2J'\nSUBMIT(Evil())",
    "class Evil(str):\n    def __str__(self): raise SystemExit\nSUBMIT(Evil('x'))",
    "SUBMIT({1: {2, 3}})", "SUBMIT(float('nan'))"])
def test_hostile_submissions_are_data(interpreter, code):
    def plain(value):
        if isinstance(value, dict):
            return all(map(plain, value)) and all(map(plain, value.values()))
        return all(map(plain, value)) if isinstance(value, list) else type(value) in (int, str, float)

    assert plain(interpreter.execute(code).output)


def test_a_recursive_submission_is_an_error(interpreter):
    with pytest.raises(CodeExecutionError, match="(?i)circular|recursion"):
        interpreter.execute("a = []\na.append(a)\nSUBMIT(a)")
    output = interpreter.execute("print('\\x1b]0;title\\x07' + 'y' * 1_000_000)")
    assert len(output) < 21000 and "\x1b" not in output


def test_a_dead_kernel_ends_the_interpreter():
    with WorkcellInterpreter() as mine:
        with pytest.raises(CodeInterpreterError) as raised:
            mine.execute("import os; os._exit(1)")
        assert not isinstance(raised.value, CodeExecutionError)
        with pytest.raises(CodeInterpreterError, match="shut down"):
            mine.execute("1")
    with pytest.raises(ValueError, match="without isolation"):
        WorkcellInterpreter(executor="inprocess").start()


def test_rlm():
    asked = []

    class Sub(DummyLM):
        def forward(self, prompt=None, messages=None, **options):
            asked.append(messages[-1]["content"] if messages else prompt)
            return super().forward(prompt, messages, **options)

    lm = DummyLM([{"reasoning": "look", "code": "print(len(context)); found = llm_query('what is in ' + context[:7])"},
                  {"reasoning": "done", "code": "import os\nSUBMIT(answer='%s by %s' % (context[-3:], os.getcwd() != '" + os.getcwd() + "'))"}])
    rlm = dspy.RLM("context, query -> answer", interpreter_factory=functools.partial(WorkcellInterpreter, timeout=30), max_iters=4,
                   sub_lm=Sub([{"answer": "sub"}] * 5))
    with dspy.context(lm=lm):
        result = rlm(context="needle " + "hay " * 100_000 + "end", query="?")
    assert result.answer == "end by True" and len(asked) == 1 and "what is in needle" in str(asked[0])


def test_interpreters_by_fork():
    with WorkcellInterpreters("import math\nbase = list(range(1000))\nopen('f', 'w').write('0')") as interpreters:
        made = [interpreters() for _ in range(5)]
        for number, each in enumerate(made):
            each.tools["double"] = lambda value, number=number: 2 * value + number
            assert each.execute("x = %d; open('f', 'w').write(str(x)); base.append(x); double(x)" % number) == 3 * number
        assert [each.execute("x, len(base), base[-1], open('f').read()") for each in made] == [(n, 1001, n, str(n)) for n in range(5)]
        made[0].shutdown()
        with pytest.raises(CodeInterpreterError, match="shut down"):
            made[0].execute("1")
        assert made[1].execute("math.pi > 3") is True
        for each in made[1:]:
            each.shutdown()
        lm = DummyLM([{"reasoning": "done", "code": "SUBMIT(answer=str(len(base)))"}] * 3)
        with dspy.context(lm=lm):
            assert dspy.RLM("query -> answer", interpreter_factory=interpreters, max_iters=2)(query="?").answer == "1000"
    with pytest.raises(ValueError, match="without isolation"):
        WorkcellInterpreters(executor="inprocess")


def recursive(interpreters, answers):
    """A tool that gives a part of the text to an RLM of its own, whose interpreter is a fork."""
    def ask(part: str) -> str:
        """What a smaller run finds in a part of the text."""
        inner = DummyLM([{"reasoning": "count", "code": "n = count('needle', text)\nprint('seen', n)"}, {"reasoning": "enough", "code": "SUBMIT(answer=str(n))"}])
        with dspy.context(lm=inner):
            done = dspy.RLM("text, query -> answer", interpreter_factory=interpreters, max_iters=3)(text=part, query="how many?")
        answers.append([each["output"] for each in done.trajectory])
        return done.answer

    return ask


def test_a_whole_recursive_run():
    """The model's first code fails, the second one asks a run of its own for each part, the third one submits."""
    answers = []
    lm = DummyLM([{"reasoning": "look", "code": "parts = context.split('|')\nprint(len(parts), undefined)"},
                  {"reasoning": "mend", "code": "found = [int(ask(part=each)) for each in parts]\nprint(found)"},
                  {"reasoning": "sum", "code": "SUBMIT(answer=sum(found))"}])
    with WorkcellInterpreters("import re\ndef count(word, text):\n    return len(re.findall(word, text))") as interpreters, dspy.context(lm=lm):
        rlm = dspy.RLM("context, query -> answer: int", tools=[recursive(interpreters, answers)], interpreter_factory=interpreters, max_iters=5)
        result = rlm(context="|".join("hay needle " * number for number in range(1, 6)), query="how many needles?")
    outputs = [each["output"] for each in result.trajectory]
    assert result.answer == 15 and len(outputs) == 3
    assert "NameError" in outputs[0] and "[1, 2, 3, 4, 5]" in outputs[1]
    assert len(answers) == 5 and all("seen %d" % number in each[0] for number, each in enumerate(answers, 1))


def test_a_run_that_never_submits():
    """After its last step dspy asks the model for the answer, from what the code has printed; the interpreter is ended."""
    lm = DummyLM([{"reasoning": "go on", "code": "n = globals().get('n', 0) + 1\nprint('step', n)"}] * 3 + [{"answer": "three steps"}])
    with WorkcellInterpreters() as interpreters, dspy.context(lm=lm):
        result = dspy.RLM("query -> answer", interpreter_factory=interpreters, max_iters=3)(query="?")
    assert result.answer == "three steps" and ["step %d" % number in each["output"] for number, each in enumerate(result.trajectory, 1)] == [True] * 3
