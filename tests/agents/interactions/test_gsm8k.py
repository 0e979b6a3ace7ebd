"""The gsm8k interaction: it is satisfied by the right answer alone, its hints fit the mistake and give nothing away."""

import asyncio

import pytest

from burnish.agents.interactions import gsm8k
from burnish.agents.interactions.gsm8k import Gsm8kInteraction
from burnish.agents.interactions.session import InteractionSession
from burnish.errors import ToolFailure

QUERY = "How many eggs are left?"


def converse(*answers, ground_truth="1,234", config=None, query=QUERY):
    """The user's turns to these turns of the policy, and the score of the trajectory."""

    async def run():
        interaction = Gsm8kInteraction(config or {})
        kwargs = {"name": "gsm8k", "query": query, "ground_truth": ground_truth}
        session = InteractionSession(interaction, kwargs, "t", 5.0)
        await session.start()
        messages, turns = [{"role": "user", "content": query}], []
        for answer in answers:
            messages.append({"role": "assistant", "content": answer})
            turns.append(await session.respond(messages))
            messages.append({"role": "user", "content": turns[-1].text})
        score = await session.score()
        await session.close()
        assert not interaction._trajectories
        return turns, score

    return asyncio.run(run())


@pytest.mark.parametrize("answer", ["so #### 1234", "#### 1,234", "#### $1234.00", "first #### 9\nthen #### 1234"])
def test_the_right_answer_ends_it_with_praise_and_a_score_of_one(answer):
    [turn], score = converse(answer)
    assert (turn.done, turn.text, turn.score) == (True, gsm8k.PRAISE, 1.0) and score == 1.0


AGAIN, REPEATED = f"{gsm8k.WRONG_AGAIN}\n\n{QUERY}", f"{gsm8k.REPEATED} {gsm8k.STILL_WRONG}"


@pytest.mark.parametrize(
    ("method", "answers", "texts"),
    [
        ("strict", ("I think 1234", "#### twelve", "#### 7"), (gsm8k.NO_FORM, gsm8k.NO_NUMBER, gsm8k.WRONG)),
        ("strict", ("no idea", "#### 3", "#### 1234"), (gsm8k.NO_FORM, gsm8k.WRONG, gsm8k.PRAISE)),
        (
            "strict",
            ("#### 1", "#### 2", "#### 3", "#### 2.0", "#### 5"),
            (gsm8k.WRONG, AGAIN, gsm8k.STILL_WRONG, REPEATED, gsm8k.STILL_WRONG),
        ),
        ("flexible", ("a dozen", "so 7", "it is 1234 eggs"), (gsm8k.NO_NUMBER_AT_ALL, gsm8k.WRONG, gsm8k.PRAISE)),
    ],
)
def test_hints_match_the_mistake_and_a_later_right_answer_counts(method, answers, texts):
    turns, score = converse(*answers, config={"method": method})
    assert [turn.text for turn in turns] == [*texts]
    right = [text == gsm8k.PRAISE for text in texts]
    assert [turn.done for turn in turns] == right and [turn.score for turn in turns] == [*map(float, right)]
    assert score == float(right[-1])


def test_no_hint_depends_on_the_ground_truth():
    answers = ("I think 5", "#### five", "#### 5", "#### -5", "#### 50", "#### 50", "#### 5000000")
    said = [[turn.text for turn in converse(*answers, ground_truth=truth)[0]] for truth in ("987654", "-3", 6, 49.5)]
    assert all(texts == said[0] for texts in said)


@pytest.mark.parametrize(
    "ground_truth, told", [(None, "ground_truth=None: "), ("many", "ground_truth='many': the gsm8k interaction needs")]
)
def test_a_row_without_a_number_to_compare_with_is_reported(ground_truth, told):
    with pytest.raises(ToolFailure, match=f"interaction_kwargs.{told}"):
        converse("#### 1", ground_truth=ground_truth)


def test_trajectories_at_the_same_time_do_not_mix():
    async def run():
        interaction = Gsm8kInteraction({})
        ids = [await interaction.start_interaction(ground_truth=i) for i in range(3)]
        answers = [
            await interaction.generate_response(id_, [{"role": "assistant", "content": f"#### {3 - i}"}])
            for i, id_ in enumerate(ids)
        ]
        return [answer[0] for answer in answers], [await interaction.calculate_score(id_) for id_ in ids]

    assert asyncio.run(run()) == ([False, False, False], [0.0, 0.0, 0.0])
    # 0 → 3, 1 → 2, 2 → 1: each is right for another trajectory only


def test_it_answers_the_policy_and_nobody_else():
    with pytest.raises(ValueError, match="the last message is not the policy's"):
        asyncio.run(Gsm8kInteraction({}).generate_response("t", [{"role": "user", "content": "#### 4"}]))
