"""Rows as a person reads them: nothing cut, nothing interpreted, bytes summed up; and which rows are chosen."""

import io

import pytest
from rich.console import Console

from burnish.data.chat import ChatRenderer
from burnish.data.files import describe
from burnish.data.show import Condition, Selection, parse_rows, print_blocks, row_blocks
from burnish.errors import ConfigError, DataError

PNG = b"\x89PNG\r\n" + bytes(2000)


def shown(row, renderer=None, *, terminal=False, width=80, tokens=(), **options):
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=width, color_system="standard" if terminal else None)
    print_blocks(console, row_blocks(row, renderer, **options), tokens)
    return file.getvalue()


def test_a_prompt_with_all_its_fields():
    row = {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?\nQuick!"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "2"},
        "extra_info": {"split": "train", "index": 0, "none": None},
        "agent_name": "tool_agent",
        "tools_kwargs": {"calc": {"a": 1}},
        "nothing": None,
    }
    assert shown(row) == (
        "  data source: openai/gsm8k\n"
        "  ability: math\n"
        "  agent: tool_agent\n"
        "  system:\n    Be brief.\n"
        "  user:\n    1+1?\n    Quick!\n"
        "  ground truth: 2\n"
        '  reward_model: {"style": "rule"}\n'
        '  extra_info: {"split": "train", "index": 0}\n'
        '  tools_kwargs: {"calc": {"a": 1}}\n'
    )


def test_the_exact_text_of_the_chat_template(tokenizer):
    renderer = ChatRenderer(tokenizer)
    count = len(renderer.prompt_ids([{"role": "user", "content": "1+1?"}]))
    assert shown({"prompt": "1+1?"}, renderer) == (
        f'  prompt, {count} tokens, ends with "tart|>assistant\\n":\n'
        "    <|start|>user\n    1+1?<|end|><|start|>assistant\n\n"
    )
    row = {"messages": [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}]}
    text, (ids, _) = shown(row, renderer), renderer.conversation(row["messages"])
    assert text.startswith(f"  conversation, {len(ids)} tokens, ")
    assert text.endswith(":\n    <|start|>user\n    1+1?<|end|><|start|>assistant\n    2<|end|>\n")
    coloured = shown({"prompt": "hi"}, renderer, terminal=True, tokens=["<|start|>"])
    assert "\x1b[36m<|start|>\x1b[0m" in coloured


def test_a_row_that_cannot_be_rendered_is_shown_raw_with_a_note(tokenizer):
    text = shown({"prompt": [{"role": "user", "content": [{"type": "image", "image": PNG}]}]}, ChatRenderer(tokenizer))
    assert "  user:\n" in text and "PNG image, 2,006 bytes" in text
    assert "  cannot be rendered: not available yet: image parts in messages" in text
    assert "cannot be rendered: message 0 has no role" in shown({"prompt": [{"a": 1}]}, ChatRenderer(tokenizer))
    assert "cannot be rendered: the text has a lone surrogate" in shown({"prompt": "\ud800"}, ChatRenderer(tokenizer))


def test_pairs_stand_below_each_other():
    text = shown({"prompt": "hi", "chosen": "good\nday", "rejected": [{"role": "assistant", "content": "grr"}]})
    assert text.endswith("  chosen:\n    good\n    day\n  rejected, assistant:\n    grr\n")


def test_responses_with_what_belongs_to_each():
    row = {
        "prompt": "hi",
        "responses": ["a\nb", ""],
        "scores": [1.0, 0.0],
        "response_log_probs": [-1.23456, -2.0],
        "finish_reasons": ["stop", "length"],
        "response_lengths": [3, 0],
    }
    text = shown(row)
    assert "  response 0 · score 1 · log-prob -1.235 · finished by stop · tokens 3:\n    a\n    b\n" in text
    assert "  response 1 · score 0 · log-prob -2 · finished by length · tokens 0 (empty):\n" in text
    assert shown({"responses": "alone", "scores": [1, 2]}) == "  response 0:\n    alone\n  scores: [1, 2]\n"


def test_tool_calls_parts_and_names_of_tools():
    schema = {"type": "function", "function": {"name": "search"}}
    row = {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "see "}, {"type": "image", "image": PNG}]},
            {"role": "assistant", "tool_calls": [{"function": {"name": "search"}}], "content": None},
            {"role": "tool", "content": "found", "name": "search"},
        ],
        "tools": '[{"name": "calc"}]',
    }
    text = shown(row)
    assert '    see {"type": "image", "image": "<PNG image, 2,006 bytes>"}\n' in text
    assert '  assistant, tool_calls:\n    [{"function": {"name": "search"}}]\n' in text
    assert "  tool:\n    found\n  tool, name:\n    search\n" in text and "  tools: calc\n" in text
    assert shown({"tools": [schema, "calc"]}) == "  tools: search, calc\n"


def test_bytes_and_pictures_are_summed_up():
    url = "data:image/png;base64," + "QUJD" * 1000
    text = shown({"images": [{"bytes": PNG, "path": None}], "raw": b"abc", "link": f"see {url} there"})
    assert '  images: [{"bytes": "<PNG image, 2,006 bytes>"}]\n' in text
    assert "  raw: <3 bytes>\n" in text and "  link: see <image/png, 3,000 bytes> there\n" in text


@pytest.mark.parametrize("terminal", [True, False])
def test_markup_and_escapes_are_shown_literally(terminal):
    evil = "[bold red]x[/] :smile: \x1b[2J\x1b]0;title\x07 \r\b \u202egnp \x9b31m [link=http://x]y[/link]"
    text = shown({"prompt": evil, evil: evil}, terminal=terminal, width=400)
    assert text.count("[bold red]x[/] :smile: \\x1b[2J\\x1b]0;title\\x07 \\x0d\\x08 \\u202egnp \\x9b31m") == 3
    unsafe = {"\x1b[2J", "\x1b]", "\x07", "\r", "\x08", "\u202e", "\x9b"}
    assert not [code for code in unsafe if code in text]
    assert shown({"x\n  ground truth": "2"}) == "  x\\n  ground truth: 2\n"


def test_long_texts_are_wrapped_on_a_terminal_and_never_cut():
    words = " ".join(f"word{i}" for i in range(100)) + " " + "ö" * 300
    on_terminal = shown({"prompt": words}, terminal=True, width=40)
    assert all(f"word{i}" in on_terminal for i in range(100)) and on_terminal.count("ö") == 300
    piped = shown({"prompt": words}, width=40)
    assert f"    {words}\n" in piped


@pytest.mark.parametrize(
    ("typed", "spans"),
    [
        ("5", [(5, 6)]),
        ("0:3", [(0, 3)]),
        (":3", [(0, 3)]),
        ("7:", [(7, None)]),
        ("0, 7,9:11", [(0, 1), (7, 8), (9, 11)]),
    ],
)
def test_row_numbers_as_typed(typed, spans):
    assert parse_rows(typed) == spans


@pytest.mark.parametrize(
    ("parse", "typed", "message"),
    [(parse_rows, typed, f"--rows {typed}: expected a row number, a range such as 0:3")
     for typed in ("", "x", "1,,2", "-1", "1:2:3", "1.5")]
    + [(parse_rows, "3:3", "--rows 3:3: 3:3 holds no row")]
    + [(Condition.parse, typed, f"--where {typed}: expected COLUMN=VALUE") for typed in ("data_source", "=x", "")],
)  # fmt: skip
def test_rows_and_conditions_that_cannot_be_read(parse, typed, message):
    with pytest.raises(ConfigError, match=message):
        parse(typed)


@pytest.fixture
def table(write_jsonl):
    rows = [{"n": i, "even": i % 2 == 0, "extra_info": {"name": f"row{i % 3}"}} for i in range(10)]
    return describe(write_jsonl(rows))


def numbers(table, **asked):
    asked["conditions"] = [Condition.parse(text) for text in asked.pop("where", [])]
    chosen = Selection(**asked).rows(table)
    assert all(row["n"] == number for number, row in chosen)
    return [number for number, _ in chosen]


def test_rows_are_chosen_by_number_by_value_and_at_random(table):
    assert numbers(table) == [0, 1, 2]
    assert numbers(table, spans=parse_rows("9,0:2")) == [9, 0, 1]
    assert numbers(table, spans=parse_rows("8:100")) == [8, 9]
    assert numbers(table, where=["extra_info.name=row2"]) == [2, 5, 8]
    assert numbers(table, where=["even=true", "extra_info.name=row2"]) == [2, 8]
    assert numbers(table, where=["n=7"]) == [7]
    assert numbers(table, spans=parse_rows("0:6"), where=["even=False"]) == [1, 3, 5]
    drawn = numbers(table, draw=4, seed=1)
    assert len(set(drawn)) == 4 and drawn == numbers(table, draw=4, seed=1) != numbers(table, draw=4, seed=2)
    assert numbers(table, draw=100, where=["even=true"]) == [0, 2, 4, 6, 8]


def test_rows_that_are_not_there(table):
    with pytest.raises(DataError, match="has no row 10; its rows are 0 to 9"):
        numbers(table, spans=parse_rows("3,10"))
    with pytest.raises(DataError, match=r"--where extra_info.name=x: .* extra_info.name is mostly row0 \(4\), row1"):
        numbers(table, where=["extra_info.name=x"])
    with pytest.raises(DataError, match="no column 'nmae'; the columns are n, even, extra_info. Name one of them"):
        numbers(table, where=["nmae=x"])
