from burnish.data.tasks.calculator import TASK, questions, rows
from burnish.rewards.routing import default_compute_score


def test_rows_ask_the_tool_agent_and_offer_the_calculator():
    for row in rows("train", 20, seed=1):
        a, b = row["extra_info"]["a"], row["extra_info"]["b"]
        assert (
            row["prompt"] == [{"role": "user", "content": f"What is {a} * {b}?"}]
            and 100 <= min(a, b) <= max(a, b) < 1000
        )
        assert row["agent_name"] == "tool_agent" and row["tool_config"] == {"available_tools": ["calculator"]}
        truth = row["reward_model"]["ground_truth"]
        assert truth == str(a * b)
        assert default_compute_score(row["data_source"], f"<answer> {a * b} </answer>", truth)["score"] == 1.0


def test_splits_never_share_a_product_nor_its_twin():
    train = {tuple(sorted(pair)) for seed in (1, 2) for pair in questions("train", 3000, seed)}
    test = {tuple(sorted(pair)) for seed in (1, 3) for pair in questions("test", 500, seed)}
    assert len(train) > 3000 and len(test) > 500 and not train & test


def test_rows_follow_from_the_seed():
    assert TASK.generate("test", 5, 4, {}) == rows("test", 5, 4) != rows("test", 5, 5)
