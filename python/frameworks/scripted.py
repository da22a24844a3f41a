"""Models that replay answers, for the examples of docs/frameworks: the names that an example expects, and what must be true after it."""
from typing import Any, Callable, Dict, NamedTuple, Tuple


class Example(NamedTuple):
    framework: str
    make: Callable[[], Tuple[Dict[str, Any], Callable[[Dict[str, Any]], None]]]


def expect(text):
    def check(names):
        assert text in str(names["answer"]), names["answer"]

    return check


def smolagents():
    import smolagents

    class Replay(smolagents.Model):
        steps = ["both = population('Bern') + population(city='Basel')\nprint(both)", "final_answer(both)"]

        def generate(self, messages, **kwargs):
            return smolagents.ChatMessage(role="assistant", content="<code>\n%s\n</code>" % self.steps.pop(0))

    return {"model": Replay()}, expect("314000")


MODELS = {"smolagents": Example("smolagents", smolagents)}
