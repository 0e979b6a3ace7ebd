"""Rows as a person reads them: nothing cut, nothing interpreted, bytes summed up; and which rows are chosen."""

import io

import pytest
from rich.console import Console

from burnish.data.chat import ChatRenderer
from burnish.data.show import print_blocks, row_blocks

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


def test_the_exact_text_of_the_chat_template_or_why_there_is_none(tokenizer):
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
    text = shown({"prompt": [{"role": "user", "content": [{"type": "image", "image": PNG}]}]}, ChatRenderer(tokenizer))
    assert "  user:\n" in text and "PNG image, 2,006 bytes" in text
    assert "  cannot be rendered: not available yet: image parts in messages" in text
    assert "cannot be rendered: message 0 has no role" in shown({"prompt": [{"a": 1}]}, ChatRenderer(tokenizer))
    assert "cannot be rendered: the text has a lone surrogate" in shown({"prompt": "\ud800"}, ChatRenderer(tokenizer))


def test_pairs_and_responses_with_what_belongs_to_each():
    text = shown({"prompt": "hi", "chosen": "good\nday", "rejected": [{"role": "assistant", "content": "grr"}]})
    assert text.endswith("  chosen:\n    good\n    day\n  rejected, assistant:\n    grr\n")
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


def test_tool_calls_names_of_tools_bytes_and_pictures():
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
