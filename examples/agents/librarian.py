"""An agent that learns: it keeps what worked as a workflow, and another session finds and uses it. Streams what happens."""

import asyncio
import tempfile

from scripted import ScriptedModel, converse

from workcell import FileStorage, Session

SOURCE = '''"""Counts the words of a text, the most frequent first."""
async def run(text: str, most: int = 3) -> list:
    counts = {}
    for word in text.lower().split():
        counts[word] = counts.get(word, 0) + 1
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:most]
'''

FIRST = [
    "```python\nprint('trying it out')\nworkflows.create('frequent_words', %r)\n"
    "workflows.frequent_words(text='a b a c b a')\n```" % SOURCE,
    "It works, and I keep it.",
]
SECOND = [
    "What is there?\n```python\n[w['name'] for w in workflows.search('count words')]\n```",
    lambda messages: "```python\nworkflows.invoke(%s[0], text='the cat and the dog', most=1)\n```" % messages[-1]["content"],
    lambda messages: "Most frequent: " + messages[-1]["content"],
]


async def session_with(storage, replies, task, seen):
    async with Session(storage=storage) as session:
        async def run(code):
            async for event in session.stream(code):
                seen.append(event.type)
                if event.type == "chunk":
                    print("  |", event.text, end="")
            result = event.result
            return result.error if result.error is not None else repr(result.value)

        return await converse(ScriptedModel(replies), run, task)


async def main():
    seen = []
    with tempfile.TemporaryDirectory() as folder:
        await session_with(FileStorage(folder), FIRST, "Write something that counts words.", seen)
        answer = await session_with(FileStorage(folder), SECOND, "Which word is the most frequent one?", seen)
    print(answer)
    return answer, seen


if __name__ == "__main__":
    asyncio.run(main())
