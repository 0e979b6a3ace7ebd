"""A chat template writes what transformers would write, or ends with one message after a bounded amount of work."""

from pathlib import Path

import pytest

from burnish.data.chat import ChatRenderer
from burnish.data.template import ChatTemplate
from burnish.errors import DataError, ModelError
from tests.data.conftest import refused

TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two <numbers>",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": "é"}}}
TALK = [
    {"role": "system", "content": "Be brief. "},
    {"role": "user", "content": "  2+2?\n"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nLet me see.", "tool_calls": [CALL]},
    {"role": "tool", "content": "4", "name": "add"},
    {"role": "tool", "content": "four"},
    {"role": "assistant", "content": "4"},
    {"role": "user", "content": "And {{ 3 }} % 'more'?"},
]

# The shapes of known models' templates, and one with what they seldom use.
HONEST = {file.stem: file.read_text() for file in sorted((Path(__file__).parent / "templates").iterdir())}


@pytest.mark.parametrize("template", HONEST.values(), ids=HONEST)
@pytest.mark.parametrize("tools", [None, [TOOL, TOOL]], ids=["no tools", "tools"])
def test_honest_templates_give_the_text_of_transformers(tokenizer, template, tools):
    for count in range(2, len(TALK) + 1):
        for kwargs in {}, {"enable_thinking": False, "custom_tools": [TOOL]}:
            ours = ChatRenderer(tokenizer, {"chat_template": template, **kwargs})
            for prompt in True, False:
                theirs = tokenizer.apply_chat_template(
                    TALK[:count], tools, chat_template=template, add_generation_prompt=prompt, tokenize=False, **kwargs
                )
                assert ours.text(TALK[:count], tools, generation_prompt=prompt) == theirs


def test_long_conversations_fit_the_budget():
    long = [*TALK[:1], *[dict(message, content=message["content"] * 40) for message in TALK[1:]] * 100]
    for name, template in HONEST.items():
        assert ChatTemplate(template).render(long, {"tools": [TOOL] * 50, "bos_token": "", "eos_token": ""}), name
    huge = [{"role": "user", "content": "word " * 200_000}]
    clean = "{{ messages[0].content" + ".replace('</tool_response>', '')" * 4 + " }}"
    for template in HONEST["qwen"], clean:
        assert len(ChatTemplate(template).render(huge, {})) >= 10**6


@pytest.mark.parametrize(
    "template",
    [
        "{% set ns = namespace(x='') %}{% for m in messages %}{% set ns.x = ns.x + m.role + m.content %}{% endfor %}",
        "{% set ns = namespace(x=[]) %}{% for m in messages %}{% set ns.x = ns.x + [m] %}{% endfor %}",
        "{% for m in messages %}{% if messages[loop.index0:] | selectattr('role', 'equalto', 'user') | list %}"
        "{{ m.content }}{% endif %}{% endfor %}",
    ],
    ids=["text so far", "messages so far", "messages that follow"],
)
def test_a_template_may_look_at_all_messages_for_each(template):
    ChatTemplate(template).render([{"role": "user", "content": "word " * 300}] * 300, {})


NS = "{% set ns = namespace(x=START) %}{% for i in range(99999) %}{% set ns.x = STEP %}{% endfor %}{{ END }}"


def grown(step, start="(1, 2)", end="ns.x"):
    return NS.replace("START", start).replace("STEP", step).replace("END", end)


LOOP = "{% for i in range(99999) %}"
NESTED = LOOP + LOOP + "{% endfor %}{% endfor %}"
MANY = "{% set x = 'a' * 1000000 %}"
TAKES, CALLS, WIDTH, NESTS = "takes more than", "calls itself", "width among", "nested too deeply"
COSTLY = {
    "nested loops": (NESTED, TAKES),
    "nested loops that write": (LOOP + LOOP + "x{% endfor %}{% endfor %}", TAKES),
    "nested loops with a condition": (LOOP + "{% for j in range(99999) if false %}{% endfor %}{% endfor %}", TAKES),
    "a loop of filters": (LOOP + "{% set x = range(99999) | list %}{% endfor %}", TAKES),
    "a long text": ("{{ 'a' * 10**10 }}", TAKES),
    "a long list": ("{{ [1] * 10**10 }}", TAKES),
    "a power": ("{{ 10 ** 10 ** 10 }}", TAKES),
    "growing numbers": (grown("ns.x * ns.x", "3"), TAKES),
    "a huge number": ("{{ 10 ** 6000 // 7 }}", "bits"),
    "doubled text": (grown("ns.x ~ ns.x", "'ab'"), TAKES),
    "added text": (grown("ns.x + ns.x", "'ab'"), TAKES),
    "doubled list": (grown("[ns.x, ns.x]"), TAKES),
    "doubled list as JSON": (grown("[ns.x, ns.x]", end="ns.x | tojson"), TAKES),
    "doubled keys": (grown("(ns.x, ns.x)", end="{}[ns.x]"), TAKES),
    "a deep key": (grown("(ns.x,)", end="{ns.x: 1}").replace("99999", "999"), "levels"),
    "a namespace that is written": (grown("[ns.x, ns.x]", end="ns"), TAKES),
    "a macro that calls itself": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", CALLS),
    "a macro that calls itself twice": (
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(90) }}",
        TAKES,
    ),
    "a block in itself": ("{% block a %}{{ self.a() }}{% endblock %}", CALLS),
    "a recursive loop": ("{% for x in [[1], [2]] recursive %}{{ loop([[1], [2]]) }}{% endfor %}", CALLS),
    "a width": ("{{ '%9999999999d' % 1 }}", TAKES),
    "a width as value": ("{{ '%*d' % (9999999999, 1) }}", WIDTH),
    "a width for a filter": ("{{ '%9999999999d' | format(1) }}", TAKES),
    "a width of format": ("{{ '{:9999999999}'.format(1) }}", TAKES),
    "a width of format as value": ("{{ '{:{}}'.format(1, '9999999999') }}", WIDTH),
    "center": ("{{ 'a' | center(10 ** 10) }}", TAKES),
    "zfill": ("{{ 'a'.zfill(9999999999) }}", TAKES),
    "indent": ("{{ 'a\na' | indent(9999999999) }}", TAKES),
    "replace": (MANY + "{{ x | replace('a', x) }}", TAKES),
    "join": (MANY + "{{ x.join(range(99999) | map('string')) }}", TAKES),
    "translate": (MANY + "{{ x.translate({97: x}) }}", TAKES),
    "batch": ("{{ [1] | batch(10 ** 10, 'x') | list }}", TAKES),
    "slices": (MANY + LOOP + "{% set y = x[1:] %}{% endfor %}", TAKES),
    "comparisons": (MANY + LOOP + "{% set y = x == x ~ '' %}{% endfor %}", TAKES),
    "members": ("{% set x = range(9999) | list %}{{ x | select('in', x | map('string') | list) | list }}", TAKES),
    "text of a macro": (MANY + "{% macro f() %}" + LOOP + "{{ x }}{% endfor %}{% endmacro %}{{ f() }}", TAKES),
    "text that is set": (MANY + "{% set y %}" + LOOP + "{{ x }}{% endfor %}{% endset %}", TAKES),
    "lists that are added": ("{{ range(99999) | batch(1) | sum(start=[]) | length }}", TAKES),
    "wrapped text": ("{{ ('a' * 99999) | wordwrap(1) }}", TAKES),
    "a long path for each": ("{{ range(9999) | map(attribute='a' ~ '.a' * 9999) | list }}", TAKES),
    "a long path to select": ("{{ range(9999) | selectattr('a' ~ '.a' * 9999) | list }}", TAKES),
    "a long path to add": ("{{ range(99) | sum(attribute='a' ~ '.a' * 9999) }}", TAKES),
    "grouped items": (LOOP + "{% set x = range(9999) | groupby('real') %}{% endfor %}", TAKES),
    "nested loops of generation": ("{% generation %}" + NESTED + "{% endgeneration %}", TAKES),
    "steps that are given back": ("{{ 1 | charge(-10**15) }}" + NESTED, TAKES),
    "steps that are no number": ("{{ ['a'] | map('charge', 'nan' | float) | list }}" + NESTED, TAKES),
    "a long template": ("a" * 300_000, "characters"),
    "parentheses": ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", NESTS),
    "sums": ("{{ 1" + " + 1" * 5000 + " }}", NESTS),
    "loops in loops": ("{% for a in messages %}" * 99 + "{% endfor %}" * 99, NESTS),
    "digits": ("{{ " + "9" * 9999 + " }}", "digits"),
    "no template": ("\n{% if %}", "line 2: Expected an expression"),
}


@pytest.fixture
def small_budget(monkeypatch):
    """A tenth, so that the tests take a tenth of the time."""
    monkeypatch.setattr("burnish.data.template.BUDGET", 10**6)


@pytest.mark.hostile
@pytest.mark.usefixtures("small_budget")
@pytest.mark.parametrize(("template", "problem"), COSTLY.values(), ids=COSTLY)
def test_a_template_that_never_ends_or_grows_is_one_message(tokenizer, template, problem):
    renderer = ChatRenderer(tokenizer, {"chat_template": template})
    with pytest.raises(ModelError) as caught:
        renderer.text([{"role": "user", "content": "2+2?"}])
    said = str(caught.value)
    assert said.startswith("the chat template in data.apply_chat_template_kwargs.chat_template: ")
    assert problem in said and "\n" not in said and len(said) < 700


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{% include 'x' %}", "no loader"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ messages[9].x }}", "no element 9"),
        ("{{ cycler() }}", "at least one item"),
        ("{{ lipsum(99) }}", "'lipsum' is undefined"),
        ("{{ (1.5).hex().encode('no codec') }}", "no codec"),
        ("{{ raise_exception('two\nlines \x1b[31m' * 999) }}", r"two\nlines \x1b[31m"),
    ],
)
def test_what_a_template_raises_is_one_line(tokenizer, template, problem):
    renderer = ChatRenderer(tokenizer, {"chat_template": template})
    with pytest.raises(DataError, match="the chat template cannot render messages with the roles user: ") as caught:
        renderer.text([{"role": "user", "content": "2+2?"}])
    said = str(caught.value)
    assert problem in said and said.isprintable() and len(said) < 600


@pytest.mark.usefixtures("small_budget")
def test_a_budget_is_of_one_render(tokenizer):
    template = "{% for i in range(n) %}{% for j in range(999) %}x{% endfor %}{% endfor %}"
    few, many = (ChatRenderer(tokenizer, {"chat_template": template, "n": n}) for n in (30, 3000))
    for _ in range(3):
        assert few.text([{"role": "user", "content": "a"}]) == "x" * 30 * 999
        refused("takes more than", many.text, [{"role": "user", "content": "a"}], error=ModelError)


@pytest.mark.usefixtures("small_budget")
def test_the_folder_of_a_bad_template_is_named(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(NESTED)
    made = type(tokenizer).from_pretrained(tmp_path)
    refused(f"the chat template of {tmp_path}: it takes", ChatRenderer(made).text, TALK, error=ModelError)
