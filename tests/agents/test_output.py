"""AgentLoopOutput: what loops may hand in, and what is refused."""

import numpy as np
import pytest
import torch

from burnish.agents import AgentLoopOutput
from burnish.agents.output import as_ids
from burnish.errors import AgentError
from burnish.models.tiny import byte_tokenizer


def output(**changes):
    fields = {
        "prompt_ids": [5, 6],
        "response_ids": [1, 2, 3, 4],
        "response_mask": [1, 1, 0, 1],
        "response_logprobs": [-1.0, -2.0, 0.0, -3.0],
    }
    return AgentLoopOutput(**(fields | changes))


@pytest.mark.parametrize("convert", [list, tuple, np.array, torch.tensor])
def test_ids_may_be_lists_arrays_or_tensors(convert):
    made = output(
        prompt_ids=convert([5, 6]),
        response_ids=convert([1, 2, 3, 4]),
        response_mask=convert([True, True, False, True]),
        response_logprobs=convert([-1.0, -2.0, 0.0, -3.0]),
        reward_score=torch.tensor(0.5),
    )
    assert made == output(reward_score=0.5)
    assert [type(value) for value in (*made.prompt_ids, *made.response_mask)] == [int] * 6


def test_ids_of_a_batch_of_one_and_of_an_encoding_and_log_probs_that_are_not_read():
    assert as_ids(torch.tensor([[5, 6]])) == [5, 6]
    tokenizer = byte_tokenizer()
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "a"}], add_generation_prompt=True)
    assert as_ids(chat) == as_ids(chat["input_ids"]) == list(chat["input_ids"])
    assert as_ids([torch.tensor(5), np.int64(6)]) == [5, 6]
    for unread in (None, -9.0, float("nan")):  # outside the mask
        assert output(response_logprobs=[-1.0, -2.0, unread, -3.0]).response_logprobs == [-1.0, -2.0, 0.0, -3.0]


@pytest.mark.parametrize(
    "changes,message",
    [
        ({"prompt_ids": []}, "prompt_ids is empty"),
        ({"prompt_ids": "5 6"}, "prompt_ids is a str; expected a list or a tensor"),
        ({"prompt_ids": [[5], [6]]}, r"prompt_ids\[0\] is \[5\]; expected whole numbers"),
        ({"response_ids": [1, 2.5, 3, 4]}, r"response_ids\[1\] is 2\.5"),
        ({"response_mask": [1, 1]}, "response_mask has 2 entries and response_ids has 4"),
        ({"response_mask": [1, 2, 0, 1]}, r"response_mask\[1\] is 2; it must be 0 or 1"),
        ({"response_logprobs": [-1.0]}, "response_logprobs has 1 entries and response_ids has 4"),
        ({"response_logprobs": [-1.0, None, 0.0, -1.0]}, r"response_logprobs\[1\] is None; a token with mask 1 needs"),
        ({"response_logprobs": [-1.0, float("nan"), 0, 0]}, r"response_logprobs\[1\] is nan"),
        (
            {"response_mask": [1] * 4, "response_logprobs": [-1.0, -2.0, float("-inf"), -3.0]},
            r"response_logprobs\[2\] is -inf; a token with mask 1 needs",
        ),
        ({"reward_score": float("inf")}, "reward_score is inf; expected a finite number"),
        ({"reward_score": "0.5"}, "reward_score is '0.5'"),
        ({"turn_rewards": [1.0]}, "turn_rewards has 1 values, but response_mask marks 2 turns"),
        ({"turn_rewards": [1.0, None]}, r"turn_rewards\[1\] is None"),
    ],
)
def test_what_does_not_line_up_is_refused(changes, message):
    with pytest.raises(AgentError, match=message):
        output(**changes)


def test_turns_are_runs_of_sampled_tokens_and_cut_takes_everything_along():
    made = output(turn_rewards=torch.tensor([0.5, 1.0]), reward_score=2.0, num_turns=4)
    assert made.turn_ends() == [1, 3]
    assert made.policy_ids == [1, 2, 4]
    assert made.turn_rewards == [0.5, 1.0]
    assert made.cut(4) is made
    assert made.cut(3) == output(
        response_ids=[1, 2, 3], response_mask=[1, 1, 0], response_logprobs=[-1, -2, 0], turn_rewards=[0.5],
        reward_score=2.0, num_turns=4,
    )  # fmt: skip
    assert made.cut(1).turn_rewards == [0.5]
