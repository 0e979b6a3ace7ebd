import pytest

from burnish.data.tasks.preference import row
from burnish.data.tasks.task import LeftOut
from burnish.errors import DataError

OPTIONS = {"data_source": "Anthropic/hh-rlhf"}
START = "\n\nHuman: Hi\n\nAssistant: Hello.\n\nHuman: What is\n\na leap year?"
PROMPT = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello."},
    {"role": "user", "content": "What is\n\na leap year?"},
]
DIALOGUES = {"chosen": f"{START}\n\nAssistant: One of 366 days.", "rejected": f"{START}\n\nAssistant: No."}


def said(*contents: str) -> list[dict]:
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(contents)]


def test_dialogues_become_messages_and_two_answers():
    assert row(DIALOGUES, OPTIONS) == {
        "data_source": "Anthropic/hh-rlhf",
        "prompt": PROMPT,
        "chosen": "One of 366 days.",
        "rejected": "No.",
        "extra_info": {"turns": 3},
    }


@pytest.mark.parametrize(
    "record",
    [
        {"prompt": "Why?", "chosen": "Because.", "rejected": "No."},
        {"prompt": said("Why?"), "chosen": "Because.", "rejected": "No."},
        {"prompt": "\n\nHuman: Why?\n\nAssistant:", "chosen": " Because.", "rejected": " No."},
        {"chosen": said("Why?", "Because."), "rejected": said("Why?", "No.")},
        {"prompt": "Why?", "chosen": said("Why?", "Because."), "rejected": said("Why?", "No.")},
        {
            "prompt": "Why?",
            "chosen": [{"role": "assistant", "content": "Because."}],
            "rejected": [{"role": "assistant", "content": "No."}],
        },
        {
            "prompt": "Why?",
            "chosen": "Human: Why?\n\nAssistant: Because.",
            "rejected": "\n\nHuman: Why?\n\nAssistant: No.",
        },
        {"prompt": "\n\nHuman: Why?", "chosen": "\n\nAssistant: Because.", "rejected": "Assistant: No."},
        {"prompt": "Human: Why?\n\nAssistant:", "chosen": said("Why?", "Because."), "rejected": "No."},
    ],
    ids=["text", "messages", "dialogue", "conversations", "both", "answers", "dialogues", "human", "mixed"],
)
def test_every_form_becomes_the_same_row(record):
    made = row(record, OPTIONS)
    assert (made["prompt"], made["chosen"], made["rejected"]) == (said("Why?"), "Because.", "No.")


def test_a_dialogue_as_prompt_becomes_its_messages():
    made = row({"prompt": START, "chosen": "One of 366 days.", "rejected": "No."}, OPTIONS)
    assert made == row(DIALOGUES, OPTIONS)


def test_the_fields_of_messages_are_kept():
    call = {"function": {"name": "add", "arguments": {"a": 1}}}
    prompt = [
        {"role": "user", "name": "Ann", "content": "1+1?", "tool_calls": None},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "2", "tool_call_id": "7"},
    ]
    without_null = [{k: v for k, v in message.items() if v is not None} for message in prompt]
    for record in ({"prompt": prompt, "chosen": "2", "rejected": "3"}, conversations(prompt, "2", "3")):
        assert row(record, OPTIONS)["prompt"] == without_null
    with pytest.raises(LeftOut, match="do not share their prompt"):
        row(
            {**conversations(prompt, "2", "3"), "rejected": [*prompt[:2], prompt[2] | {"tool_call_id": "8"}, *ANSWER]},
            OPTIONS,
        )


def conversations(prompt, *answers):
    sides = [[*prompt, {"role": "assistant", "content": answer}] for answer in answers]
    return dict(zip(("chosen", "rejected"), sides, strict=True))


ANSWER = [{"role": "assistant", "content": "3"}]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (DIALOGUES | {"rejected": DIALOGUES["chosen"]}, "chosen and rejected are equal"),
        (DIALOGUES | {"rejected": "\n\nHuman: Else\n\nAssistant: No."}, "do not share their prompt"),
        (DIALOGUES | {"rejected": "No."}, "a dialogue does not start with Human: or Assistant:"),
        (DIALOGUES | {"chosen": "Well\n\nHuman: a\n\nAssistant: b"}, "does not start with Human: or Assistant:"),
        (DIALOGUES | {"chosen": "\n\nHuman: a\n\nHuman: b\n\nAssistant: c"}, "do not alternate"),
        (
            DIALOGUES | {"chosen": "\n\nHuman: a\n\nAssistant: \n\nHuman: b\n\nAssistant: c"},
            "turn of a dialogue is empty",
        ),
        (DIALOGUES | {"chosen": f"{START}\n\nAssistant:"}, "the answer of 'chosen' is empty"),
        (DIALOGUES | {"rejected": START}, "the last turn of 'rejected' is not the assistant's"),
        (DIALOGUES | {"chosen": None}, "'chosen' is empty"),
        ({"prompt": "A?", "chosen": said("B?", "b"), "rejected": "c"}, "'chosen' does not start with the prompt"),
        (
            {"prompt": "A?", "chosen": "b", "rejected": "Human: B?\n\nAssistant: c"},
            "'rejected' does not start with the p",
        ),
        ({"prompt": "A?", "chosen": "b\n\nHuman: And?", "rejected": "c"}, "'chosen' is an answer with further turns"),
        (
            {"prompt": f"{START}\n\nAssistant: W", "chosen": "a", "rejected": "b"},
            "last turn of 'prompt' is not the user",
        ),
        ({"prompt": "Assistant:", "chosen": "a", "rejected": "b"}, "the last turn of 'prompt' is not the user's"),
        (
            {"prompt": "A?", "chosen": [{"role": "assistant", "tool_calls": [{"name": "f"}]}], "rejected": "b"},
            "the answer of 'chosen' calls tools",
        ),
        ({"chosen": said("Q", "a")[1:], "rejected": said("Q", "b")[1:]}, "there is no prompt before the answers"),
    ],
)
def test_pairs_that_are_left_out(record, reason):
    with pytest.raises(LeftOut, match=reason):
        row(record, OPTIONS)


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (5, "column 'chosen': expected a string or a list of messages, got"),
        ([{"role": "user"}], r"column 'chosen': message 0 \(user\) has the content a NoneType"),
    ],
)
def test_a_column_of_another_shape(chosen, message):
    with pytest.raises(DataError, match=message):
        row(DIALOGUES | {"chosen": chosen}, OPTIONS)
