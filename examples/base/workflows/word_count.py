"""Counts the words of a file."""


def run(path: str) -> int:
    return int(tools.wc.words(file=path).split()[0])
