"""Managers: scores on tokens, samples on the screen, users' classes."""

import asyncio
import textwrap
from collections.abc import Iterator

import pytest
import torch

from burnish.config import PPOConfig
from burnish.config.reward import RewardManagerConfig, RewardManagerModuleConfig, RewardModelConfig
from burnish.config.rules.scoring import limits
from burnish.errors import ConfigError, RewardError
from burnish.protocol import DataProto
from burnish.rewards.contract import FunctionSpec, ScoreResult
from burnish.rewards.managers import MANAGERS, load_manager
from burnish.rewards.managers.batch import BatchRewardManager
from burnish.rewards.managers.naive import NaiveRewardManager, place
from burnish.rewards.scoring import Scoring
from burnish.user_code import load_object

SPECIAL = 0


class Letters:
    """A tokenizer whose tokens are characters; 0 is special."""

    def decode(self, ids, skip_special_tokens=False):
        assert skip_special_tokens
        return "".join(chr(i) for i in ids if i != SPECIAL)


def batch(responses: list[str], masks: list[list[int]] | None = None, **columns) -> DataProto:
    """Rows with the prompt `?`, left-padded by one; a mask of 0 marks text that is not the policy's."""
    width = max(map(len, responses)) + 1
    masks = masks or [[1] * len(text) for text in responses]
    rows = [[ord(c) for c in text] + [SPECIAL] * (width - len(text)) for text in responses]
    mask = torch.tensor([m + [0] * (width - len(m)) for m in masks])
    ones = torch.tensor([[0, 1]] * len(rows))
    columns = {"data_source": ["gsm8k"] * len(rows), "uid": list(range(len(rows))), **columns}
    return DataProto.from_dict(
        {
            "prompts": torch.tensor([[SPECIAL, ord("?")]] * len(rows)),
            "responses": torch.tensor(rows),
            "response_mask": mask,
            "attention_mask": torch.cat([ones, (torch.tensor(rows) != SPECIAL).long()], dim=1),
        },
        non_tensors=columns,
    )


def truths(*values) -> list[dict]:
    return [{"ground_truth": value} for value in values]


def length(solution_str):
    return len(solution_str)


def test_the_score_sits_on_the_last_token_of_the_policy():
    data = batch(["abc", "abcde"], [[1, 1, 1], [1, 0, 1, 0, 0]])
    rewards = NaiveRewardManager(Letters(), 0, length)(data)
    assert rewards.tolist() == [[0, 0, 3, 0, 0, 0], [0, 0, 3, 0, 0, 0]]
    assert rewards.dtype == torch.float32
    padded = batch(["ab", "c"], [[1, 1], [0]])  # a row without a token of the policy keeps zeros
    assert NaiveRewardManager(Letters(), 0, length)(padded).sum(-1).tolist() == [2.0, 0.0]


def test_only_the_policys_text_is_scored_by_default_with_the_built_in_scorers():
    data = batch(["<s>#### 9</s>#### 7"], [[1] * 3 + [0] * 6 + [1] * 10], reward_model=truths("9"))
    answer = NaiveRewardManager(Letters(), 0)(data, return_dict=True)
    assert answer["reward_tensor"].sum() == 0 and answer["reward_extra_info"] == {"score": [0.0]}
    seen = []
    NaiveRewardManager(Letters(), 0, lambda solution_str: seen.append(solution_str) or 1)(data)
    assert seen == ["<s>\n</s>#### 7"]


def test_async_functions_also_inside_a_running_event_loop():
    async def compute_score(solution_str):
        return len(solution_str)

    async def in_a_notebook():
        return NaiveRewardManager(Letters(), 0, compute_score)(batch(["bcd"]))

    assert NaiveRewardManager(Letters(), 0, compute_score)(batch(["a", "bcd"])).sum(-1).tolist() == [1.0, 3.0]
    assert asyncio.run(in_a_notebook()).sum() == 3


def test_results_that_rows_carry_are_only_placed_and_info_is_gathered_in_columns():
    carried = [ScoreResult(0.5, {"acc": 1}), None, ScoreResult(0.0, error="zero was asked for")]
    data = batch(["a", "bc", "d"], score_result=carried)
    function = lambda solution_str: {"score": len(solution_str), "pred": solution_str}  # noqa: E731
    answer = NaiveRewardManager(Letters(), 0, function)(data, return_dict=True)
    assert answer["reward_tensor"].sum(-1).tolist() == [0.5, 2.0, 0.0]
    columns = {"score": [0.5, 2.0, 0.0], "acc": [1, None, None], "pred": [None, "bc", None]}
    assert answer["reward_extra_info"] == columns
    data = batch(["a", "b"])
    data.batch["rm_scores"] = torch.tensor([[0.25, 0.0], [0.0, 0.5]])
    answer = NaiveRewardManager(Letters(), 1, length)(data, return_dict=True)
    assert answer["reward_tensor"] is data.batch["rm_scores"] and answer["reward_extra_info"] == {}


def test_a_sample_without_a_score_is_not_a_silent_zero():
    def compute_score(solution_str):
        raise ValueError("nothing to see")

    manager = NaiveRewardManager(Letters(), 0, compute_score)
    with pytest.raises(RewardError, match=r"1 of 2 samples have no score(.|\n)*first uid 1(.|\n)*nothing to see"):
        manager(batch(["a", "b"], score_result=[ScoreResult(1.0), None]))
    assert [r.score for r in manager.score(batch(["a"]))] == [None]


def test_turn_rewards_sit_on_the_ends_of_turns():
    mask = torch.tensor([[1, 1, 0, 1, 0, 1], [1, 1, 1, 0, 0, 0]])
    results = [ScoreResult(3.5, turn_rewards=(0.5, 1.0, 2.0)), ScoreResult(4.0)]
    assert place(results, mask, [0, 1]).tolist() == [[0, 0.5, 0, 1, 0, 2], [0, 0, 4, 0, 0, 0]]
    with pytest.raises(RewardError, match="row 0: 2 turn rewards for 3 turns of the policy"):
        place([ScoreResult(1.5, turn_rewards=(0.5, 1.0))], mask[:1], [0])


def test_printed_samples_command_no_terminal(capsys):
    hostile = "a\x1b[2J\x9b\ud800"
    data = batch(["a\x1b[2J"], reward_model=truths(hostile), data_source=[hostile])
    NaiveRewardManager(Letters(), 1, lambda solution_str: {"score": 1, hostile: hostile})(data)
    printed = capsys.readouterr().out
    assert printed.count(r"a\x1b[2J") == 5 and "\x1b" not in printed and "\x9b" not in printed


def test_the_first_samples_of_each_source_are_printed(capsys):
    data = batch(
        ["#### 7", "#### 8", "answer: 1", "#### 9"],
        data_source=["gsm8k", "gsm8k", "burnish/arithmetic", "gsm8k"],
        reward_model=truths("7", "7", 1, "7"),
    )
    NaiveRewardManager(Letters(), 0)(data)
    assert capsys.readouterr().out == ""
    NaiveRewardManager(Letters(), 1)(data)
    assert capsys.readouterr().out.splitlines() == [
        "--- sample 1 of gsm8k ---",
        "prompt:       ?",
        "response:     #### 7",
        "ground truth: 7",
        "score:        1.0",
        "--- sample 1 of burnish/arithmetic ---",
        "prompt:       ?",
        "response:     answer: 1",
        "ground truth: 1",
        "score:        1.0, acc 1.0, format 1.0, pred 1",
    ]
    NaiveRewardManager(Letters(), 2)(data)
    assert capsys.readouterr().out.count("sample 2 of gsm8k") == 1


def test_a_row_that_is_left_to_a_model_is_not_scored_by_rule():
    scoring = Scoring(FunctionSpec(), reward_model=True)
    styles = [{"style": "model"}, {"style": "model"}, {"style": "both", "ground_truth": "7"}]
    data = batch(["a", "b", "#### 7"], reward_model=styles, score_result=[ScoreResult(0.25), None, None])
    first, second, third = NaiveRewardManager(Letters(), 0, scoring).score(data)
    assert (first.score, third.score) == (0.25, 1.0)
    assert second.error == "reward_model.style='model': the row came without a score of the reward model"
    assert second.response == "b"


def test_rows_and_functions_are_checked():
    assert "ground_truth is missing" in NaiveRewardManager(Letters(), 0).check_row({"data_source": "gsm8k"})
    assert NaiveRewardManager(Letters(), 0, length).check_row({"data_source": "gsm8k"}) is None
    with pytest.raises(ConfigError, match="compute_score: it requires answer"):
        NaiveRewardManager(Letters(), 0, lambda answer: 1)


MANAGER = """
    class Mine:
        def __init__(self, tokenizer, num_examine, compute_score, reward_fn_key, **kwargs):
            self.num_examine, self.compute_score, self.reward_fn_key = num_examine, compute_score, reward_fn_key
        def __call__(self, data, return_dict=False):
            return self.compute_score(data_source="gsm8k", solution_str="#### 7", ground_truth="7")
    class Halfway(Mine):
        takes_results = True
    class Narrow:
        def __init__(self, tokenizer): ...
    """


def load(default="naive", **chosen):
    module = RewardManagerModuleConfig(**chosen.pop("module", {}))
    scoring = Scoring(FunctionSpec(), reward_fn_key="task")
    section = RewardModelConfig(reward_manager=default)
    return load_manager(RewardManagerConfig(module=module, **chosen), section, Letters(), 2, scoring)


def test_the_default_manager_is_naive_and_a_users_class_is_adapted(reward_file, monkeypatch, tmp_path):
    naive = load()
    assert type(naive) is NaiveRewardManager and naive.takes_results
    assert (naive.num_examine, naive.reward_fn_key) == (2, "task")
    path = reward_file(MANAGER, name="manager_of_the_test.py")
    monkeypatch.syspath_prepend(tmp_path)
    by_keys = {"source": "importlib", "module": {"path": path, "name": "Mine"}}
    for keys in ({"default": f"{path}:Mine"}, {"default": "manager_of_the_test.Mine"}, by_keys):
        manager = load(**keys)
        assert manager.name == "Mine" and (manager.manager.num_examine, manager.manager.reward_fn_key) == (2, "task")
        assert manager(None) == 1.0 and not manager.takes_results and manager.check_row({}) is None
        manager.close()  # it has none


# All managers, the same scores


@pytest.fixture
def manager_of() -> Iterator:
    """Makes managers as a run does: the configuration's limits, the function tried, then the manager."""
    made = []

    def make(name: str, path: str | None = None, **reward_kwargs):
        config = PPOConfig()
        config.reward_model.reward_manager = name
        config.reward_model.sandbox.allow_unsafe = True  # the programs here are ours
        config.custom_reward_function.path = path
        config.custom_reward_function.reward_kwargs = reward_kwargs
        limits(config.reward, name)
        custom, rules = config.custom_reward_function, config.reward_model
        made.append(Scoring.from_config(custom, config.reward, rules, config.data.reward_fn_key))
        made[-1].validate()
        return load_manager(config.reward_manager, rules, Letters(), 0, made[-1])

    yield make
    for scoring in made:
        scoring.close()


ONE = """
    {form} compute_score(solution_str, ground_truth, extra_info, bonus=0):
        facts = [extra_info.get(name) for name in ("num_turns", "num_tool_calls", "truncated")]
        return {{"score": len(solution_str) * ground_truth + bonus, "facts": facts}}
    """
MANY = """
    {form} compute_score(solution_strs, ground_truths, extra_infos, bonus=0):
        return [
            {{"score": len(text) * truth + bonus,
              "facts": [info.get(name) for name in ("num_turns", "num_tool_calls", "truncated")]}}
            for text, truth, info in zip(solution_strs, ground_truths, extra_infos)
        ]
    """


@pytest.mark.parametrize(
    ("name", "source", "form"),
    [*((name, ONE, "def") for name in MANAGERS), ("batch", MANY, "def"), ("batch", MANY, "async def")],
    ids=[*MANAGERS, "batch, in one call", "batch, in one async call"],
)
def test_every_manager_gives_the_same_scores(manager_of, reward_file, name, source, form):
    facts = {"num_turns": [2, 4, 6], "num_tool_calls": [0, 1, 0], "truncated": [False, True, False]}
    data = batch(["a", "bb", "ccc"], reward_model=truths(1, 2, 3), **facts)
    answer = manager_of(name, reward_file(source.format(form=form)), bonus=0.5)(data, return_dict=True)
    assert answer["reward_tensor"].sum(-1).tolist() == [1.5, 4.5, 9.5]
    info = {"score": [1.5, 4.5, 9.5], "facts": [[2, 0, False], [4, 1, True], [6, 0, False]]}
    assert answer["reward_extra_info"] == info


def test_a_function_that_takes_lists_needs_a_manager_that_says_it_takes_batches(manager_of, reward_file):
    path = reward_file(MANY.format(form="def"))
    classes = reward_file(
        "from burnish.rewards.managers.batch import BatchRewardManager\n"
        "class Doubled(BatchRewardManager):\n"
        "    def __init__(self, **given):\n"
        "        super().__init__(**given)\n"
        "        self.name = 'doubled'\n"
        "    def __call__(self, data, return_dict=False): return 2 * super().__call__(data)\n"
        "class Plain:\n"
        "    def __init__(self, tokenizer, num_examine, compute_score, reward_fn_key): ...\n",
        name="managers.py",
    )
    data = batch(["a", "bb"], reward_model=truths(1, 2), num_turns=[2, 2])
    doubled = manager_of(f"{classes}:Doubled", path)
    assert doubled(data).sum(-1).tolist() == [2.0, 8.0] and doubled.name == "doubled"
    for name in (f"{classes}:Plain", "naive"):
        with pytest.raises(ConfigError) as error:
            manager_of(name, path)
        message = str(error.value)
        where = f"custom_reward_function.name=compute_score ({path}), with reward_model.reward_manager={name}"
        assert message.startswith(where) and "set reward_model.reward_manager=batch" in message


def test_the_manager_batch_asks_only_for_what_rows_do_not_carry(manager_of, reward_file):
    manager = manager_of(
        "batch", reward_file("def compute_score(solution_strs): return [len(solution_strs)] * len(solution_strs)")
    )
    data = batch(["a", "b", "c"], score_result=[None, ScoreResult(0.5), None])
    assert manager(data).sum(-1).tolist() == [2.0, 0.5, 2.0]
    assert manager(batch(["a"], score_result=[ScoreResult(0.5)])).sum() == 0.5
    assert not manager.compute_score.one_by_one, "trajectories can be scored alone only by a function for one"
    assert manager_of("batch", reward_file(ONE.format(form="def"))).compute_score.one_by_one
    assert manager_of("batch").compute_score.one_by_one and manager_of("naive").compute_score.one_by_one


def test_a_function_given_as_an_object_in_the_batch_form():
    def compute_score(solution_strs):
        return [len(text) / len(solution_strs) for text in solution_strs]

    assert BatchRewardManager(Letters(), 0, compute_score)(batch(["a", "bbb"])).sum(-1).tolist() == [0.5, 1.5]
    with pytest.raises(ConfigError, match="compute_score: it takes lists of samples .* set reward_model.reward_man"):
        NaiveRewardManager(Letters(), 0, compute_score)


def test_a_registered_manager_is_found_by_name(reward_file, monkeypatch):
    monkeypatch.setattr("burnish.rewards.managers.MANAGERS", dict(MANAGERS))
    source = f"from burnish.rewards.managers import register\n{textwrap.dedent(MANAGER)}\nregister('{{name}}')(Mine)\n"
    for _ in range(2):  # a file that is loaded again registers the same class
        load_object(reward_file(source.format(name="mine")), "Mine", "", "")
    assert load("mine").name == load(name="mine").name == "Mine"
    with pytest.raises(ConfigError, match="=mien: no such manager; did you mean mine"):
        load("mien")
    with pytest.raises(ConfigError, match="'naive' is already registered .burnish.rewards.managers.naive:Naive"):
        load_object(reward_file(source.format(name="naive"), "other.py"), "Mine", "", "")


def test_messages_about_managers(reward_file):
    path = reward_file(MANAGER)
    for manager, said in {
        "naiv": "reward_model.reward_manager=naiv: no such manager; did you mean naive?",
        f"{path}:Narrow": r"Narrow cannot be constructed with .*compute_score.*write __init__\(self, tok",
        f"{path}:Mime": r"model.reward_manager=\S*:Mime: .* it defines Halfway, Mine, Narrow; did you mean Mine?",
        f"{path}:Halfway": r":Halfway: Halfway has takes_results = True but no method score\(data\)",
        "my_manager.py": "my_manager.py: expected package.module:Name, .* or file.py:Name",
    }.items():
        with pytest.raises(ConfigError, match=said):
            load(manager)
    with pytest.raises(ConfigError, match="reward_manager.module.path is not set"):
        load(source="importlib")
