import pytest

from burnish.data.tasks.preference import row
from burnish.data.tasks.task import LeftOut
from tests.data.conftest import refused

OPTIONS = {"data_source": "Anthropic/hh-rlhf"}
START = "\n\nHuman: Hi\n\nAssistant: Hello.\n\nHuman: What is\n\na leap year?"
WHY, BLANK = "Human: Why?", "\n\nHuman: a\n\nAssistant: "
DIALOGUES = {"chosen": f"{START}\n\nAssistant: One of 366 days.", "rejected": f"{START}\n\nAssistant: No."}


def said(*contents: str) -> list[dict]:
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(contents)]


PROMPT = said("Hi", "Hello.", "What is\n\na leap year?")


def pair(prompt, chosen, rejected):
    return {"prompt": prompt, "chosen": chosen, "rejected": rejected}


def conversations(prompt, *answers):
    sides = [[*prompt, {"role": "assistant", "content": answer}] for answer in answers]
    return dict(zip(("chosen", "rejected"), sides, strict=True))


@pytest.mark.parametrize("record", [DIALOGUES, pair(START, "One of 366 days.", "No.")])
def test_dialogues_become_messages_and_two_answers(record):
    made = pair(PROMPT, "One of 366 days.", "No.")
    assert row(record, OPTIONS) == OPTIONS | made | {"extra_info": {"turns": 3}}


@pytest.mark.parametrize(
    "record",
    [
        pair("Why?", "Because.", "No."),
        pair(said("Why?"), "Because.", "No."),
        pair("\n\nHuman: Why?\n\nAssistant:", " Because.", " No."),
        {"chosen": said("Why?", "Because."), "rejected": said("Why?", "No.")},
        pair("Why?", said("Why?", "Because."), said("Why?", "No.")),
        {"prompt": "Why?", **conversations([], "Because.", "No.")},
        {"prompt": "Why?", "chosen": f"{WHY}\n\nAssistant: Because.", "rejected": f"\n\n{WHY}\n\nAssistant: No."},
        pair("\n\nHuman: Why?", "\n\nAssistant: Because.", "Assistant: No."),
        pair("Human: Why?\n\nAssistant:", said("Why?", "Because."), "No."),
    ],
    ids=["text", "messages", "dialogue", "conversations", "both", "answers", "dialogues", "human", "mixed"],
)
def test_every_form_becomes_the_same_row(record):
    made = row(record, OPTIONS)
    assert (made["prompt"], made["chosen"], made["rejected"]) == (said("Why?"), "Because.", "No.")


def test_the_fields_of_messages_are_kept():
    call = {"function": {"name": "add", "arguments": {"a": 1}}}
    prompt = [
        {"role": "user", "name": "Ann", "content": "1+1?", "tool_calls": None},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "2", "tool_call_id": "7"},
    ]
    without_null = [{k: v for k, v in message.items() if v is not None} for message in prompt]
    for record in (pair(prompt, "2", "3"), conversations(prompt, "2", "3")):
        assert row(record, OPTIONS)["prompt"] == without_null
    other = conversations([*prompt[:2], prompt[2] | {"tool_call_id": "8"}], "2", "3")
    both = other | {"chosen": conversations(prompt, "2", "3")["chosen"]}
    refused("do not share their prompt", row, both, OPTIONS, error=LeftOut)


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (DIALOGUES | {"rejected": DIALOGUES["chosen"]}, "chosen and rejected are equal"),
        (DIALOGUES | {"rejected": "\n\nHuman: Else\n\nAssistant: No."}, "do not share their prompt"),
        (DIALOGUES | {"rejected": "No."}, "a dialogue does not start with Human: or Assistant:"),
        (DIALOGUES | {"chosen": "Well\n\nHuman: a\n\nAssistant: b"}, "does not start with Human: or Assistant:"),
        (DIALOGUES | {"chosen": "\n\nHuman: a\n\nHuman: b\n\nAssistant: c"}, "do not alternate"),
        (DIALOGUES | {"chosen": f"{BLANK}\n\nHuman: b\n\nAssistant: c"}, "turn of a dialogue is empty"),
        (DIALOGUES | {"chosen": f"{START}\n\nAssistant:"}, "the answer of 'chosen' is empty"),
        (DIALOGUES | {"rejected": START}, "the last turn of 'rejected' is not the assistant's"),
        (DIALOGUES | {"chosen": None}, "'chosen' is empty"),
        (pair("A?", said("B?", "b"), "c"), "'chosen' does not start with the prompt"),
        (pair("A?", "b", "Human: B?\n\nAssistant: c"), "'rejected' does not start with the p"),
        (pair("A?", "b\n\nHuman: And?", "c"), "'chosen' is an answer with further turns"),
        (pair(f"{START}\n\nAssistant: W", "a", "b"), "last turn of 'prompt' is not the user's"),
        (pair("Assistant:", "a", "b"), "the last turn of 'prompt' is not the user's"),
        (pair("A?", [{"role": "assistant", "tool_calls": [{"name": "f"}]}], "b"), "the answer of 'chosen' calls tools"),
        ({"chosen": said("Q", "a")[1:], "rejected": said("Q", "b")[1:]}, "there is no prompt before the answers"),
    ],
)
def test_pairs_that_are_left_out(record, reason):
    refused(reason, row, record, OPTIONS, error=LeftOut)


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (5, "column 'chosen': expected a string or a list of messages, got"),
        ([{"role": "user"}], r"column 'chosen': message 0 \(user\) has the content a NoneType"),
    ],
)
def test_a_column_of_another_shape(chosen, message):
    refused(message, row, DIALOGUES | {"chosen": chosen}, OPTIONS)
