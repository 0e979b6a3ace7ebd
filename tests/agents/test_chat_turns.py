"""What chat templates write between turns: the continued tokens are those of the whole conversation, or it is said."""

import pytest

from burnish.agents.chat_turns import ChatTurns
from burnish.data.chat import ChatRenderer
from burnish.errors import ConfigError
from burnish.models.tiny import byte_tokenizer

# The manners of four families of templates, in their own words.
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
QWEN = (  # results of tools are gathered in one message of the user
    "{% if tools %}{{ '<|im_start|>system\\nTools: ' + (tools | tojson) + '<|im_end|>\\n' }}{% endif %}"
    "{% for m in messages %}{% if m['role'] == 'tool' %}"
    "{% if loop.index0 == 0 or messages[loop.index0 - 1]['role'] != 'tool' %}{{ '<|im_start|>user' }}{% endif %}"
    "{{ '\\n<tool_response>\\n' + m['content'] + '\\n</tool_response>' }}"
    "{% if loop.last or messages[loop.index0 + 1]['role'] != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}"
    "{% else %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
THINKING = (  # past thinking is left out of turns before the last question
    "{% set ns = namespace(last=0) %}"
    "{% for m in messages %}{% if m['role'] == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}{% set text = m['content'] %}"
    "{% if m['role'] == 'assistant' and loop.index0 < ns.last %}{% set text = text.split('</think>')[-1].lstrip() %}"
    "{% endif %}{{ '<|im_start|>' + m['role'] + '\\n' + text + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
LLAMA = (  # content is stripped, results of tools have a role of their own and are written as JSON
    "{% for m in messages %}{% set role = 'ipython' if m['role'] == 'tool' else m['role'] %}"
    "{{ '<|head|>' + role + '<|body|>\\n\\n' }}"
    "{% if m['role'] == 'tool' %}{{ m['content'] | tojson }}{% else %}{{ m['content'] | trim }}{% endif %}"
    "{{ '<|eot|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|head|>assistant<|body|>\\n\\n' }}{% endif %}"
)
OPENED = CHATML.replace("{{ '<|im_start|>assistant\\n' }}", "{{ '<|im_start|>assistant\\n<think>\\n' }}")
STRICT = (
    "{% for m in messages %}{% if m['role'] not in ('user', 'assistant') %}{{ raise_exception('only two roles') }}"
    "{% endif %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
FORGETFUL = "{{ messages[0]['content'] + '<|im_end|>' }}"
MARKS = ["<|im_start|>", "<|im_end|>", "<|head|>", "<|body|>", "<|eot|>"]


def marked(template, **options):
    """A tokenizer with this template and its marks."""
    tokenizer = byte_tokenizer(template, **options)
    tokenizer.add_special_tokens({"additional_special_tokens": MARKS})
    return tokenizer


def turns_of(template):
    return ChatTurns(ChatRenderer(marked(template)))


TEMPLATES = {"chatml": CHATML, "qwen": QWEN, "thinking": THINKING, "llama": LLAMA, "opened": OPENED, "strict": STRICT}
ANSWERS = {
    "tool": [{"role": "tool", "content": "42"}],
    "two tools": [{"role": "tool", "content": "4\n2"}, {"role": "tool", "content": "né"}],
    "user": [{"role": "user", "content": "and then?"}],
}


@pytest.mark.parametrize("name", ["chatml", "qwen", "llama", "thinking"])
@pytest.mark.parametrize("answer", ANSWERS)
def test_the_continued_tokens_are_those_of_the_whole_conversation(name, answer):
    turns = turns_of(TEMPLATES[name])
    chat, told = turns.chat, ANSWERS[answer]
    end = chat.encode("<|eot|>" if name == "llama" else "<|im_end|>")
    assert turns.after(told, ended=False) == end + turns.after(told, ended=True)
    messages = [{"role": "user", "content": "2+2?"}]
    ids = chat.prompt_ids(messages)
    for turn in ("let me see", "again", "once more"):
        ids += chat.encode(turn) + end + turns.after(told, ended=True)
        messages += [{"role": "assistant", "content": turn}, *told]
        assert ids == chat.prompt_ids(messages)


def test_it_is_said_where_a_template_cannot_be_continued():
    for template in (CHATML, QWEN, LLAMA):
        assert turns_of(template).differences("tool") == turns_of(template).differences("user") == []
    assert turns_of(THINKING).differences("tool") == []  # a result is no new question: the thinking stays
    (said,) = turns_of(THINKING).differences("user")
    assert "leaves the thinking of earlier turns out" in said
    (said,) = turns_of(OPENED).differences("user")
    assert "begins an earlier turn of the assistant otherwise" in said and "'<think>\\n'" in said
    (said,) = turns_of(STRICT).differences("tool")
    assert "no messages of the role tool" in said
    turns = turns_of(STRICT)  # its messages are the user's then
    assert turns.chat.tokenizer.decode(turns.after(ANSWERS["tool"], ended=True)) == (
        "<|im_start|>user\n42<|im_end|><|im_start|>assistant\n"
    )
    with pytest.raises(ConfigError, match="cannot continue a conversation after the assistant's turn"):
        turns_of(FORGETFUL).after(ANSWERS["user"], ended=True)


def test_a_tokenizer_without_a_template():
    turns = ChatTurns(ChatRenderer(byte_tokenizer(None)))
    told = turns.after(ANSWERS["user"], ended=True)
    assert turns.chat.tokenizer.decode(told) == "\n\nuser: and then?\n\nassistant:"
    assert turns.differences("user") == []
