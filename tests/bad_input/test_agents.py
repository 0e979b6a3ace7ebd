"""What a user can get wrong, through the command: agents, tools, interactions and retrievers. The words of each mistake
are in tests/agents and tests/search; here they are found before a model is loaded."""

import pytest

from burnish.data.files import write_parquet
from burnish.data.tasks import arithmetic
from tests.bad_input.conftest import assert_says
from tests.trainer.scripted import Reply, answering

MULTI_TURN = "actor_rollout_ref.rollout.multi_turn"
BROKEN = {
    "500s": (Reply(500, "out of memory"), ["500", "out of memory"]),
    "HTML": (Reply(200, "<html><body>Welcome</body></html>"), ["not JSON: <html>"]),
    "no JSON": (Reply(200, "{oops"), ["JSON"]),
    "malformed documents": (Reply(answer=[{"document": {"id": "0"}, "score": 1.0}]), ["contents"]),
    "too few lists": (Reply(200, '{"result": []}'), ["0", "1"]),
    "no answer in time": (Reply(answer=[], seconds=1.0), ["0.3 s"]),
}
INTERACTION = {"agent_name": "tool_agent", "interaction_kwargs": {"name": "gsm8k"}}


@pytest.mark.parametrize("kind", ["train", "val"])
def test_rows_to_train_and_to_validate_on(refuses, no_model, kind):
    rows = arithmetic.rows("train", 4, seed=0)
    rows[2] |= {"agent_name": "tool_agnet"}
    write_parquet(rows, "rows.parquet")
    message = refuses("ppo", f"data.{kind}_files=rows.parquet")
    assert_says(message, "rows.parquet, row 2", "agent_name=tool_agnet", "did you mean tool_agent", "@register")


@pytest.mark.parametrize(
    ("keys", "parts"),
    [
        (
            [f"{MULTI_TURN}.enable=true", "tool_config_path=tools.yaml"],
            [f"{MULTI_TURN}.tool_config_path", "tools.yaml, entry 0", "did you mean calculator?"],
        ),
        (
            ["data.train_files=rows.parquet", f"{MULTI_TURN}.interaction_config_path=users.yaml"],
            [f"{MULTI_TURN}.interaction_config_path=users.yaml: cannot be read"],
        ),
        (
            ["do_search=true", "retriever.url=http://127.0.0.1:9/retrieve"],
            [
                "retriever.url=http://127.0.0.1:9/retrieve: no retrieval server answers there",
                "unreachable",
                "burnish retriever serve FOLDER --port 9",
            ],
        ),
        (
            ["actor_rollout_ref.rollout.agent.default_agent_loop=serch_agent"],
            ["default_agent_loop=serch_agent", "did you mean search_agent"],
        ),
        (
            ["actor_rollout_ref.actor.state_masking=false", "algorithm.rollout_correction.mode=auto"],
            ["actor_rollout_ref.actor.state_masking=false", "leave out"],
        ),
    ],
    ids=["tools", "interactions", "retriever", "agent", "masks"],
)
def test_keys(refuses, no_model, place, keys, parts):
    (place / "tools.yaml").write_text("tools: [{name: calculater}]\n")
    write_parquet([row | INTERACTION for row in arithmetic.rows("train", 4, seed=0)], "rows.parquet")
    assert_says(refuses("ppo", *keys), *parts)


@pytest.mark.parametrize(("reply", "parts"), BROKEN.values(), ids=BROKEN)
def test_a_retriever_that_answers_nonsense(refuses, no_model, reply, parts):
    with answering(reply) as url:
        message = refuses("ppo", "do_search=true", f"retriever.url={url}", "retriever.timeout=0.3")
    assert_says(message, f"retriever.url={url}", "no retrieval server answers there", *parts)
