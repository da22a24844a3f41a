"""Counts the words of several files at once and keeps the result as an artifact."""
import asyncio


async def run(paths: list, title: str = "Word counts") -> dict:
    answers = await asyncio.gather(*(tools.wc.words.call_async(file=path) for path in paths))
    counts = {path: int(answer.split()[0]) for path, answer in zip(paths, answers)}
    artifacts.save("reports/words.json", counts, description=title)
    return counts
