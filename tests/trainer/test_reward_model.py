"""A reward model in the loop: rows choose rule, model or both; what fails, what is reported, and that runs resume."""

import logging
import math
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from burnish.config.load import load_ppo
from burnish.config.reward import RewardConfig, RewardModelConfig
from burnish.data.files import write_parquet
from burnish.data.tasks import arithmetic
from burnish.errors import ConfigError, DataError, ModelError, RewardError
from burnish.models.tiny import byte_tokenizer, write_tiny_model
from burnish.protocol import DataProto
from burnish.rewards.contract import ScoreResult
from burnish.rewards.managers import adapt_manager
from burnish.rewards.managers.naive import NaiveRewardManager
from burnish.trainer import setup
from burnish.trainer.reward_model import Judgement, RewardModel
from burnish.trainer.score import score
from burnish.workers.reward_model import RewardModelWorker
from tests.trainer.conftest import jsonl, rollouts, validated, write_judge

GRPO = ["algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=2", "data.val_files=null"]
SAYS = "{% for m in messages %}{{ m.role + ': ' + m.content + '<|end|>' }}{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"  # noqa: E501
# Whole numbers that a random model's answers differ in.
RULE = "return dict(score=float(sum(map(ord, solution_str)) % 5), length=len(solution_str))"


def write_rows(path, styles, split="train", sources=("burnish/arithmetic",)):
    rows = arithmetic.rows(split, len(styles), seed=0)
    for i, (row, style) in enumerate(zip(rows, styles, strict=True)):
        row["reward_model"]["style"], row["data_source"] = style, sources[i % len(sources)]
    write_parquet(rows, path)


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    """A random reward model with a template of its own, which is not the policy's. Read-only."""
    folder = tmp_path_factory.mktemp("judge")
    language_model = write_tiny_model(folder / "lm", hidden_size=16, layers=1, seed=9, chat_template=SAYS)
    return write_judge(language_model, folder / "rm", SAYS)


@pytest.fixture
def on(judge, reward, job):
    """The keys that switch it on; the training rows ask for rule, model and both in turn."""
    reward(RULE)
    write_rows("train.parquet", ["rule", "model", "both"] * 4)
    weights = ["reward_model.rule_weight=0.5", "reward_model.model_weight=2"]
    return ["reward_model.enable=true", f"reward_model.model.path={judge}", *weights]


def text_of(row):
    policys = byte_tokenizer()
    return policys.decode(policys(row["response"])["input_ids"], skip_special_tokens=True)


def rule_of(row):
    return float(sum(map(ord, text_of(row))) % 5)


def by_hand(judge, rows):
    """What the reward model says of dumped samples, one by one, by plain transformers."""
    tokenizer = AutoTokenizer.from_pretrained(judge)
    module = AutoModelForSequenceClassification.from_pretrained(judge).eval()
    found = []
    for row in rows:
        prompt = row["prompt"].removeprefix("<|start|>user\n").removesuffix("<|end|><|start|>assistant\n")
        messages = [{"role": "user", "content": prompt}, {"role": "assistant", "content": text_of(row)}]
        with torch.no_grad():
            ids = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False)
            found.append(module(torch.tensor([ids])).logits.item())
    return found


def styles_of(rows):
    """By the order of the data, which is not shuffled in these tests."""
    return [("rule", "model", "both")[row["uid"] % 3] for row in rows]


def test_rows_choose_rule_model_or_both(train, on, judge, metrics_of):
    train(*GRPO, *on, "data.shuffle=false", "trainer.total_training_steps=3")
    lines = metrics_of("run")
    assert len(lines) == 3
    for step, line in enumerate(lines, 1):
        rows = rollouts(step)
        assert len(rows) == 8
        asked = []
        for row, style, said in zip(rows, styles_of(rows), by_hand(judge, rows), strict=True):
            info, rule = row["reward_info"], rule_of(row)
            if style == "rule":
                assert info["rm_score"] is None and info["rule_score"] is None and row["score"] == rule
                continue
            asked.append(said)
            assert info["rm_score"] == pytest.approx(said, abs=1e-5)
            mixed = said if style == "model" else 0.5 * rule + 2 * said
            assert row["score"] == pytest.approx(mixed, abs=1e-4)
            exact = info["rm_score"] if style == "model" else 0.5 * info["rule_score"] + 2 * info["rm_score"]
            assert torch.tensor(row["score"]) == torch.tensor(exact)
            assert info["rule_score"] == (None if style == "model" else rule)
            assert (info["length"] is None) == (style == "model"), "what the function returns beside its score stays"
        for how in ("mean", "max", "min"):
            assert line[f"reward_model/score/{how}"] == pytest.approx(getattr(np, how)(asked), abs=1e-5)
        assert line["reward_model/truncated"] == 0 and line["failures/reward"] == 0
        assert line["actor/grad_norm"] > 0
    assert "timing_s/reward_model" in jsonl("run/metrics.jsonl")[0]


def test_without_a_style_that_names_it_the_model_alone_scores_all_rows(train, on, judge, metrics_of, caplog):
    write_rows("train.parquet", ["rule"] * 12, sources=("chat",))  # which no rule scores
    write_rows("test.parquet", ["rule"] * 4, "test", sources=("burnish/arithmetic", "chat"))
    with caplog.at_level(logging.INFO):
        train(GRPO[0], GRPO[1], *on, "custom_reward_function.path=null", "trainer.total_training_steps=1")
    rows, line = rollouts(1), metrics_of("run")[-1]
    assert [row["score"] for row in rows] == pytest.approx(by_hand(judge, rows), abs=1e-5)
    assert "the reward model alone scores all 12 rows, and 2 rows of validation that no rule can score" in caplog.text
    assert {"val-core/burnish/arithmetic/acc/mean@1", "val-core/chat/rm_score/mean@1"} <= line.keys()


@pytest.mark.parametrize("start", ["policy", "judge"])
def test_ppo_with_critic_and_reference_trains(train, reward, tmp_path, tiny_model, metrics_of, start):
    """The whole picture of RLHF, with a critic that starts from the policy or from the reward model."""
    write_rows("train.parquet", ["model"] * 12)
    judge = write_judge(tiny_model, tmp_path / "same")
    critic = [] if start == "policy" else [f"critic.model.path={judge}"]
    train("algorithm.adv_estimator=gae", "algorithm.use_kl_in_reward=true", "data.val_files=null", *critic,
          "reward_model.enable=true", f"reward_model.model.path={judge}", "critic.optim.lr=1e-3",
          "trainer.total_training_steps=2")  # fmt: skip
    lines = metrics_of("run")
    assert len(lines) == 2
    for line in lines:
        assert all(math.isfinite(value) for value in line.values() if isinstance(value, float)), line
        assert line["critic/grad_norm"] > 0 and line["actor/grad_norm"] > 0
        assert line["critic/score/mean"] == pytest.approx(line["reward_model/score/mean"], abs=1e-5)
    assert "actor/reward_kl_penalty" in lines[1]
    saved = {path.name for path in Path("run/global_step_2").iterdir() if path.is_dir()}
    assert "critic" in saved and not saved & {"reward_model", "rm"}, "what is frozen is not saved"


def test_greedy_rows_are_judged_too(build_trainer, on, judge):
    trainer = build_trainer("algorithm.adv_estimator=remax", "data.val_files=null", *on, "data.shuffle=false")
    worker, asked = trainer.experience.reward_model.worker, []
    ask = worker.compute_rm_score
    worker.compute_rm_score = lambda data: asked.append(len(data)) or ask(data)
    batch = trainer.experience.draw(1, {})[0]
    assert asked == [4], "of 4 prompts, 2 ask the model: each for a sample and a greedy row"
    scores = batch.batch["token_level_scores"].sum(-1)
    assert batch.batch["reward_baselines"].shape == scores.shape
    assert batch.batch["reward_baselines"][1] != scores[1]
    trainer.close()


def test_dynamic_sampling_and_the_overlong_penalty(train, on):
    metrics = train(*GRPO, *on, "algorithm.filter_groups.enable=true", "algorithm.filter_groups.metric=score",
                    "data.gen_batch_size=3", "algorithm.overlong_buffer.enable=true",
                    "algorithm.overlong_buffer.len=4", "trainer.total_training_steps=1")  # fmt: skip
    assert metrics["filter_groups/rounds"] >= 2 and metrics["filter_groups/kept_groups"] == 4
    assert metrics["reward_model/truncated"] == 0 and "reward_model/score/mean" in metrics
    for row in rollouts(1):
        assert row["score"] == pytest.approx(row["reward_info"]["score"] + row["reward_info"]["overlong_reward"])


def test_the_models_score_is_a_named_part_for_gdpo(train, on):
    write_rows("train.parquet", ["both"] * 12)
    metrics = train(*GRPO, *on, "algorithm.adv_estimator=gdpo", "algorithm.gdpo_reward_keys=[rule_score,rm_score]",
                    "trainer.total_training_steps=1")  # fmt: skip
    assert metrics["reward/rm_score/mean"] == pytest.approx(metrics["reward_model/score/mean"])
    assert metrics["actor/grad_norm"] > 0


def test_prime_learns_from_the_rules_outcome_and_has_no_use_for_a_models_scores(build_trainer, on, reward):
    write_rows("train.parquet", ["rule", "model"] * 6)
    with pytest.raises(DataError, match=r"train\.parquet.*row 1.*PRIME\) learns from the outcomes of rules"):
        build_trainer("algorithm.adv_estimator=prime", *GRPO[1:], *on)
    reward("return float(len(set(solution_str)) % 2)")
    write_rows("train.parquet", ["rule", "both"] * 6)
    trainer = build_trainer("algorithm.adv_estimator=prime", *GRPO[1:], *on)
    batch = trainer.experience.draw(1, {})[0]
    infos = batch.non_tensor_batch["reward_info"]
    expected = [info["score"] if info["rule_score"] is None else info["rule_score"] for info in infos]
    assert batch.batch["outcomes"].tolist() == expected and set(expected) == {0, 1}
    trainer.close()


OWN_MANAGER = """import torch
class Mine:
    def __init__(self, tokenizer, num_examine, compute_score, reward_fn_key):
        pass
    def __call__(self, data, return_dict=False):
        mask = data.batch["response_mask"]
        assert data.batch["rm_scores"].shape == mask.shape
        rewards = 10 * data.batch["rm_scores"]
        rewards[torch.arange(len(mask)), mask.sum(-1) - 1] += 1
        return {"reward_tensor": rewards, "reward_extra_info": {}}
"""


def test_a_custom_manager_finds_the_scores_and_decides(train, on, metrics_of):
    Path("manager.py").write_text(OWN_MANAGER)
    write_rows("test.parquet", ["rule", "model", "rule", "model"], "test", sources=("burnish/arithmetic", "chat"))
    metrics = train(*GRPO[:2], *on, "data.shuffle=false", "reward_model.reward_manager=manager.py:Mine",
                    "trainer.total_training_steps=1")  # fmt: skip
    said, line = [row["reward_info"]["rm_score"] for row in validated(0)], metrics_of("run")[0]
    assert line["val-core/burnish/arithmetic/reward/mean@1"] == 1 and said[0] is said[2] is None
    assert line["val-core/chat/rm_score/mean@1"] == pytest.approx(np.mean([said[1], said[3]]))
    assert not [name for name in line if "chat/reward" in name]
    rows = rollouts(1)
    for row, style in zip(rows, styles_of(rows), strict=True):
        said = row["reward_info"]["rm_score"]
        assert (said is None) == (style == "rule")
        assert row["score"] == pytest.approx(1 + 10 * (said or 0), abs=1e-4)
    assert "reward_model/score/mean" in metrics


def test_validation_reports_rules_and_models_apart(train, on, metrics_of):
    styles = ["rule", "model", "both", "model"]
    write_rows("test.parquet", styles, "test", sources=("burnish/arithmetic", "chat"))
    train(*GRPO[:2], *on, "trainer.val_only=true")
    rows, [line] = validated(0), metrics_of("run")
    rule, model = ([row for row in rows if row["uid"] % 2 == odd] for odd in (0, 1))
    by_rule = np.mean([rule_of(row) for row in rule])  # of rows of style both too
    assert line["val-core/burnish/arithmetic/reward/mean@1"] == pytest.approx(by_rule)
    assert line["val-aux/burnish/arithmetic/rm_score/mean@1"] == pytest.approx(rule[1]["reward_info"]["rm_score"])
    assert line["val-core/chat/rm_score/mean@1"] == pytest.approx(np.mean([row["score"] for row in model]))
    assert not [name for name in line if name.startswith("val-") and "chat/reward" in name]
    assert not [name for name in line if name.startswith("val-timing")]
    write_rows("test.parquet", ["rule", "model", "rule", "model"], "test")  # one source with both kinds
    train(*GRPO[:2], *on, "trainer.val_only=true", "trainer.default_local_dir=one")
    rows, [line], source = validated(0, "one"), metrics_of("one"), "burnish/arithmetic"
    assert line[f"val-core/{source}/reward/mean@1"] == np.mean([rows[0]["score"], rows[2]["score"]])
    assert line[f"val-aux/{source}/rm_score/mean@1"] == pytest.approx(np.mean([rows[1]["score"], rows[3]["score"]]))


def test_a_failure_makes_no_reward_of_a_models_row(train, on, metrics_of, monkeypatch):
    """It counts as 0 where that was asked for, and as no rule's score."""
    plain = RewardModelWorker.compute_rm_score

    def fails_once(self, data):
        answer = plain(self, data)
        answer.non_tensor_batch["rm_problem"][0] = "broken"
        return answer

    fails_once.__dict__.update(plain.__dict__)
    monkeypatch.setattr(RewardModelWorker, "compute_rm_score", fails_once)
    write_rows("test.parquet", ["model"] * 4, "test", sources=("chat",))
    train(*GRPO[:2], *on, "trainer.val_only=true", "reward.on_error=zero", "reward.max_failure_ratio=1")
    rows = validated(0)
    line = metrics_of("run")[-1]
    assert line["val-core/chat/rm_score/mean@1"] == pytest.approx(np.mean([row["score"] for row in rows[1:]]))
    assert line["val-failures/reward"] == 1 and not [name for name in line if "chat/reward" in name]


class Own:
    def __call__(self, data, return_dict=False):
        return {"reward_tensor": data.batch["rm_scores"], "reward_extra_info": {}}


@pytest.fixture
def scored():
    def run(styles, said, rule=(), mixes=True, precomputed=None, **options):
        count = len(styles)
        mask = torch.tensor([[1, 1, 0]] * count)
        tensors = dict.fromkeys(("responses", "response_mask", "input_ids", "attention_mask"), mask)
        batch = DataProto.from_dict(
            tensors,
            {
                "uid": list(range(count)), "data_source": ["toy"] * count, "index": list(range(count)),
                "raw_prompt": [[]] * count, "reward_model": [{"style": style} for style in styles],
                "score_result": [*rule, *[None] * (count - len(rule))],
            },
        )  # fmt: skip
        metrics, asked = {}, []

        def compute_rm_score(data):
            asked.append(len(data))
            placed = torch.zeros(len(data), 3)
            placed[:, 1] = torch.tensor([value if isinstance(value, float) else math.nan for value in said])
            problems = [None if isinstance(value, float) else value for value in said]
            return DataProto.from_dict({"rm_scores": placed}, {"rm_problem": problems, "rm_cut": [False] * len(data)})

        worker = SimpleNamespace(compute_rm_score=compute_rm_score)
        model = RewardModel(RewardModelConfig(rule_weight=0.5, model_weight=2.0), worker, mixes=mixes)
        manager = options.pop("manager", None) or NaiveRewardManager(None, 0, lambda solution_str: 0)
        config = RewardConfig(max_failure_ratio=options.pop("max_failure_ratio", 1.0), **options)
        if precomputed is not None:
            batch.batch["rm_scores"] = precomputed
        batch = score(batch, adapt_manager(manager), config, metrics, needs_groups=False, model=model)
        return batch, metrics, asked

    return run


def test_nan_and_what_cannot_be_rendered_are_the_samples_failure_and_never_0(scored):
    with pytest.raises(RewardError, match="(?s)none of the 1 samples .*the chat template cannot render"):
        scored(["model"], ["the chat template cannot render it"])
    rule = [ScoreResult(1.0), None, ScoreResult(1.0, {"acc": 1.0})]
    batch, metrics, asked = scored(["rule", "model", "both", "model"], [math.nan, math.inf, 0.5], rule)
    assert asked == [3] and batch.non_tensor_batch["uid"].tolist() == [0, 3]
    assert batch.batch["token_level_scores"].tolist() == [[0, 1, 0], [0, 0.5, 0]]
    assert metrics["failures/reward"] == metrics["failures/dropped_samples"] == 2
    with pytest.raises(RewardError, match=r"(?s)the reward model .* gave nan"):
        scored(["model", "model"], [math.nan, 0.5], max_failure_ratio=0.05)
    batch, metrics, _ = scored(["model", "model"], [math.nan, 0.5], on_error="zero")
    assert batch.batch["token_level_scores"].sum(-1).tolist() == [0, 0.5] and metrics["failures/reward"] == 1


def test_rules_and_loops_that_scored_or_failed(scored):
    failed = ScoreResult(None, error="boom")  # which the model does not make good
    batch, metrics, _ = scored(["both", "both"], [1.0, 1.0], [failed, ScoreResult(3.0)])
    assert batch.non_tensor_batch["uid"].tolist() == [1] and metrics["failures/reward"] == 1
    assert batch.batch["token_level_scores"].sum(-1).tolist() == [0.5 * 3 + 2]
    batch, _, _ = scored(["both", "model"], [4.0, 5.0], [ScoreResult(3.0)], mixes=False)  # as in validation
    assert batch.batch["token_level_scores"].sum(-1).tolist() == [3, 5]
    infos = batch.non_tensor_batch["reward_info"].tolist()
    assert infos == [{"score": 3.0, "rm_score": 4.0}, {"score": 5.0, "rm_score": 5.0}]
    batch, _, asked = scored(["model", "model"], [0.5], [ScoreResult(7.0)])  # a reward of the agent loop
    assert asked == [1] and batch.batch["token_level_scores"].sum(-1).tolist() == [7, 0.5]


def test_turn_rewards_keep_their_places():
    rule, model = ScoreResult(3.0, turn_rewards=(1.0, 2.0)), ScoreResult(4.0)
    (mixed,) = Judgement({0: model}, weights=(0.5, 2.0)).joined_with([rule])
    assert mixed.turn_rewards == (0.5, 1.0 + 8.0) and mixed.score == 9.5


def test_precomputed_scores_are_used_as_they_are(scored):
    given = torch.tensor([[0.25, 1.0, 0], [0, 2.0, 0]])
    batch, _, asked = scored(["model", "both"], [], [None, ScoreResult(9.0)], precomputed=given)
    assert asked == [] and torch.equal(batch.batch["token_level_scores"], given)
    batch, _, asked = scored(["model", "both"], [], precomputed=given, manager=Own())
    assert asked == [] and torch.equal(batch.batch["token_level_scores"], given)


def test_a_failing_custom_manager_is_reported_as_user_code(scored):
    class Failing(Own):
        def __call__(self, data, return_dict=False):
            raise KeyError("lost")

    with pytest.raises(RewardError, match=r"(?s)the reward manager Failing failed.*KeyError: 'lost'"):
        scored(["rule", "rule"], [], manager=Failing())


@pytest.mark.parametrize("on_error", ["drop", "zero"])
def test_a_custom_manager_never_sees_a_failure(scored, on_error):
    """Nor does one that counts as 0 have a score of the model."""
    batch, metrics, _ = scored(["rule", "model", "both"], [math.nan, 3.0], manager=Own(), on_error=on_error)
    kept = [0, 2] if on_error == "drop" else [0, 1, 2]
    assert batch.non_tensor_batch["uid"].tolist() == kept and metrics["failures/reward"] == 1
    assert batch.batch["token_level_scores"].sum(-1).tolist() == [0] * (len(kept) - 1) + [3]
    assert [info["rm_score"] for info in batch.non_tensor_batch["reward_info"]] == [None] * (len(kept) - 1) + [3.0]
    assert "rm_scores" not in batch.batch and "rm_score" not in batch.non_tensor_batch


def test_a_custom_manager_finds_scores_in_every_batch(scored):
    batch, _, asked = scored(["rule", "rule"], [], manager=Own())
    assert asked == [] and not batch.batch["token_level_scores"].any()
    assert [info["rm_score"] for info in batch.non_tensor_batch["reward_info"]] == [None, None]


def test_a_custom_function_scores_rows_alone_but_not_as_half_of_both(build_trainer, on):
    write_rows("train.parquet", ["rule", "model"] * 6)
    build_trainer(*GRPO).close()
    write_rows("train.parquet", ["rule", "both"] * 6)
    with pytest.raises(DataError, match=r"row 1.*style='both' asks for a reward model, but none is set: set rew"):
        build_trainer(*GRPO)


@pytest.mark.parametrize("manager", ["naive", "manager.py:Mine"])
def test_a_misspelt_style_is_no_rule(build_trainer, on, manager):
    Path("manager.py").write_text(OWN_MANAGER)
    for style, meant in (("Model", "model"), ("both ", "both"), ("models", "model")):
        write_rows("train.parquet", ["model", style] * 6)
        with pytest.raises(DataError, match=rf"row 1.*reward_model\.style='{style}': did you mean '{meant}'"):
            build_trainer(*GRPO, *on, f"reward_model.reward_manager={manager}")


@pytest.mark.parametrize("file", ["train", "test"])
def test_a_prompt_that_cannot_be_rendered_is_reported_before_models_load(build_trainer, on, judge, tmp_path, file):
    picky = shutil.copytree(judge, tmp_path / "picky")
    refusal = "{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}{{ m"
    byte_tokenizer(SAYS.replace("{{ m", refusal)).save_pretrained(picky)
    rows = arithmetic.rows(file, 4, seed=0)
    for row, style in zip(rows, ("rule", "model", "rule", "both"), strict=True):
        row["reward_model"]["style"] = style
    for row in (rows[0], rows[3]):  # the first is scored by rule alone
        row["prompt"] = [{"role": "system", "content": "Be brief."}, *row["prompt"]]
    write_parquet(rows, f"{file}.parquet")
    with pytest.raises(DataError, match=rf"{file}\.parquet.*row 3.*the reward model's chat: .*no system"):
        build_trainer(*GRPO[:2], *on, f"reward_model.model.path={picky}", "data.max_prompt_length=64")


def test_conversations_that_are_too_long_are_counted_and_logged_once(build_trainer, on, caplog):
    trainer = build_trainer(*GRPO, *on, "reward_model.max_length=30")
    metrics = [{}, {}]
    with caplog.at_level(logging.WARNING):
        for step, of_step in enumerate(metrics, 1):
            trainer.experience.draw(step, of_step)[0]
    assert caplog.text.count("lost their start; reward_model/truncated counts them") == 1
    assert all(of_step["reward_model/truncated"] > 0 for of_step in metrics)
    trainer.close()


@pytest.fixture
def prepared(job, on):
    def run(*overrides):
        loaded = load_ppo([*job, *GRPO, *on, *overrides])
        return setup.prepare(loaded), loaded

    return run


def test_model_errors_are_reported_with_their_key(prepared):
    with pytest.raises(ModelError, match=r"^reward_model\.model\.path: .*\./no/such"):
        prepared("reward_model.model.path=./no/such")
    with pytest.raises(ModelError, match=r"^reward_model\.model\.tokenizer_path: .*\./no/such"):
        prepared("reward_model.model.tokenizer_path=./no/such")
    with pytest.raises(ConfigError, match="reward_model.max_length=999: .* has a context of 512"):
        prepared("reward_model.max_length=999")


def test_the_plan_counts_its_weights_and_a_shorter_context_is_a_notice(prepared, capsys):
    (_, facts), loaded = prepared("reward_model.max_length=30", "--plan")
    said = "the reward model reads 30 tokens (reward_model.max_length), of up to 40: what is longer"
    assert said in str(loaded.notices)
    setup.run(loaded)
    parameters = facts["reward_model.model"].parameters
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "memory: reward model" in line]
    assert f"{4 * parameters / 2**10:.1f} KiB" in line


def test_a_critic_that_reads_other_tokens_is_refused(job, on, tmp_path):
    tokenizer = byte_tokenizer()
    vocabulary = tokenizer.get_vocab()
    other = write_tiny_model(tmp_path / "other")
    swapped = vocabulary | {"a": vocabulary["b"], "b": vocabulary["a"]}
    ends = {"pad_token": "<|pad|>", "eos_token": "<|end|>"}
    type(tokenizer)(vocab=swapped, merges=[], unk_token=None, **ends).save_pretrained(other)
    loaded = load_ppo([*job, *on, "algorithm.adv_estimator=gae", f"critic.model.path={other}"])
    setup.prepare(loaded)
    with pytest.raises(ModelError, match=rf"critic\.model\.path={other}: .*other ids for 2 of them, such as 'a'"):
        setup.build(loaded.config)
