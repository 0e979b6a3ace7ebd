"""Conversations that make_nano_agent.py teaches with, and the words, tags and template of its tokenizer.

Search: a question about an invented person, a query, what the retrieval server would find for it, the answer. Every
demonstration has its own small world, of names that no world of the task has (`facts.TAUGHT`). Calculator: a
product of the train split, a call, its result, the answer.

The retrieved text stands in a message of the role `information`, which the template writes into the assistant's turn,
as the search agent does. Fine-tuning has its loss on the assistant's own messages alone.
"""

import json
import random
import re
from typing import Any

from burnish.agents.loops.search import passages
from burnish.data.tasks import calculator, facts
from burnish.data.tasks.facts import BEGINNINGS, ENDINGS, RELATIONS, TAUGHT, Fact
from burnish.search.documents import Document

Messages = list[dict[str, Any]]

CHAT_TEMPLATE = (
    "{%- set turn = namespace(open=false) -%}"
    "{%- if tools -%}{{ '<|start|>tools\\n' }}"
    "{%- for tool in tools -%}"
    "{{ tool.function.name + '(' + tool.function.parameters.properties | join(', ') + ')' }}"
    "{%- endfor -%}{{ '<|end|>\\n' }}{%- endif -%}"
    "{%- for message in messages -%}"
    "{%- if message.role == 'information' -%}{{ message.content }}"
    "{%- else -%}"
    "{%- if not turn.open -%}{{ '<|start|>' + message.role + '\\n' }}{%- endif -%}"
    "{{ message.content }}"
    "{%- for call in message.tool_calls or [] -%}"
    "{{ '<tool_call>' + {'name': call.function.name, 'arguments': call.function.arguments} | tojson + '</tool_call>' }}"
    "{%- endfor -%}"
    "{%- set turn.open = message.role == 'assistant' and message.content.endswith('</search>') -%}"
    "{%- if not turn.open -%}{{ '<|end|>\\n' }}{%- endif -%}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt and not turn.open -%}{{ '<|start|>assistant\\n' }}{%- endif -%}"
)
TAGS = [f"<{mark}{tag}>" for tag in ("search", "information", "answer", "tool_call") for mark in ("", "/")]
PIECES = ["\n\n", " * ", '{"name": "', '", "arguments": {"', '": "', '"}}']
TEXTS = (  # whose words are tokens
    "user\nassistant\ntools\ntool\ncalculator(expression)",
    "What is\nWho is the teacher of\nDoc 1(Title: a) The rival of a is friend guard",
    "My previous action is invalid. If I want to search, I should put the query between and give the final answer, "
    "I should put the answer between. Let me try again.",
)
GUESSES = 0.65  # of unhelpful demonstrations; the others write a search or a call that is none
# The same few again and again: learning to guess at random would cost the skill of copying what was read.
GUESSED_NAMES = TAUGHT[:: len(TAUGHT) // 4]
GUESSED_NUMBERS = ("20000", "345678", "123456", "50000")
CALL = '<tool_call>{{"name": "calculator", "arguments": {{"expression": "{}"}}}}</tool_call>'


def vocabulary() -> list[str]:
    """Tokens besides single bytes: tags, words with the blank before them, and the two halves of invented names."""
    words = [word for text in TEXTS for word in re.findall(r" ?[A-Za-z]{2,}", text)]
    words += [f" {relation}" for relation in RELATIONS]
    names = [*(f" {one}" for one in BEGINNINGS), *BEGINNINGS, *ENDINGS]
    return list(dict.fromkeys([*TAGS, *PIECES, *words, *names]))


def search(draw: random.Random) -> Messages:
    """A right demonstration: one query, or a vague one and then a better one."""
    fact, others = small_world(draw)
    about = [other for other in others if other.person == fact.person]
    steps = []
    if draw.random() < 0.15:
        steps += searched(fact.person, draw.sample(about, 2))
    found = [fact, draw.choice(others)]  # the best match first, as the server has them
    return [user(fact.question), *steps, *searched(fact.query, found), answer(fact.answer)]


def unhelpful_search(draw: random.Random) -> Messages:
    """A guess mostly; else a query without its tags, or with the wrong one behind it."""
    fact, _ = small_world(draw)
    spoilt = (fact.query, f"<search> {fact.query} </answer>")
    guess = answer(draw.choice(GUESSED_NAMES))
    return [user(fact.question), guess if draw.random() < GUESSES else assistant(draw.choice(spoilt))]


def calculation(draw: random.Random, a: int, b: int) -> Messages:
    """A right demonstration: a call, its result, the answer."""
    call = assistant(CALL.format(f"{a} * {b}"))
    return [user(calculator.question(a, b)), call, {"role": "tool", "content": str(a * b)}, answer(str(a * b))]


def unhelpful_calculation(draw: random.Random, a: int, b: int) -> Messages:
    """A guess mostly; else a call that is none."""
    spoilt = (f"{a} * {b}", f"<tool_call>{a} * {b}</tool_call>")
    guess = answer(draw.choice(GUESSED_NUMBERS))
    return [user(calculator.question(a, b)), guess if draw.random() < GUESSES else assistant(draw.choice(spoilt))]


def small_world(draw: random.Random) -> tuple[Fact, list[Fact]]:
    """A fact, and others that a query for it might find: about the same person, of the same kind, naming the person."""
    person, other = draw.sample(TAUGHT, 2)
    relation = draw.choice(RELATIONS)
    about = facts.facts([person], TAUGHT, draw)
    fact = next(one for one in about if one.relation == relation)
    others = [one for one in about if one is not fact]
    alike = [one for one in facts.facts([other], TAUGHT, draw) if one.relation == relation]
    naming = Fact(other, relation, person)
    return fact, [*others, *alike, naming]


def searched(query: str, found: list[Fact]) -> Messages:
    """A query and what is found for it, in the words of the search agent."""
    text = passages([Document("", one.document) for one in found])
    observed = f"\n\n<information>{text}</information>\n\n"
    return [assistant(f"<search> {query} </search>"), {"role": "information", "content": observed}]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def answer(text: str) -> dict[str, Any]:
    return assistant(f"<answer> {text} </answer>")


def sft_row(data_source: str, messages: Messages, tools: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """A conversation to learn from."""
    return {"data_source": data_source, "messages": messages, "tools": json.dumps(tools or [])}
