"""The last `<answer>…</answer>` of a response: what the question and puzzle scorers read. The opening tag is the
nearest one before the closing tag, so that a response may speak of `<answer>` before it gives one. Tags are lower-case.
"""

OPEN, CLOSE = "<answer>", "</answer>"


def last_answer(text: str) -> str | None:
    """What is in the last pair of tags, without blanks around it; None where there is no pair."""
    start = text.rfind(OPEN, 0, max(text.rfind(CLOSE), 0))
    if start < 0:
        return None
    start += len(OPEN)
    return text[start : text.index(CLOSE, start)].strip()


def tagged(answer: object) -> str:
    """A response that gives this answer and nothing else."""
    return f"{OPEN}{answer}{CLOSE}"
