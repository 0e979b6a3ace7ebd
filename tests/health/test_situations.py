"""Runs of the embedded model that go wrong, each in its own way: the finding, its evidence and its remedy are in
events.jsonl, and the verdict is that of `burnish doctor`. Runs that learn have none above a note."""

import random
from pathlib import Path

import pytest

from burnish.cli.quickstart import NANO
from burnish.data.files import write_parquet
from burnish.data.tasks import arithmetic
from burnish.health.rule import NOTE
from burnish.tracking.run_health import read_health
from burnish.trainer.rm_trainer import main as rm
from burnish.trainer.sft_trainer import main as sft
from tests.trainer.conftest import build, events

PARTS = [f"custom_reward_function.functions.{name}.weight=1" for name in ("right", "chars")]
LR, ACTOR = "actor_rollout_ref.actor.optim.lr", "actor_rollout_ref.actor"
GRPO = ["algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=4"]
PPO = ["algorithm.adv_estimator=gae", "critic.optim.lr=1e-4", "data.train_batch_size=16"]
KL = [f"{ACTOR}.use_kl_loss=true", f"{ACTOR}.kl_loss_coef=0"]
OPPOSITES = {"nothing_moves": {"reward_without_trend"}, "reward_without_trend": {"nothing_moves"}}
REWARDS = {
    "right": "float(solution_str.strip().endswith(str(ground_truth)))",
    "zero": "0.0",
    "length": "len(solution_str) / 100",
    "noise": "random.random()",
    "rare": "float(random.random() < 0.01)",
    "ones": "solution_str.count('1') / 60",
    "fails": "1 / 0",
    "chars": "len(solution_str)",
}


@pytest.fixture
def run(tmp_path, monkeypatch):
    """`run(reward, steps, *keys)`: train; returns the findings of the run by rule."""
    monkeypatch.chdir(tmp_path)

    def train(reward: str, steps: int, *keys: str) -> dict[str, dict]:
        write_parquet(arithmetic.rows("train", 400, seed=0), "train.parquet")
        head = "import random\nrandom.seed(0)\n\n\ndef compute_score(solution_str, ground_truth):\n"
        source = f"{head}    return {REWARDS[reward]}\n\n\n" + "".join(
            f"def {name}(solution_str, ground_truth):\n    return {REWARDS[name]}\n\n\n" for name in ("right", "chars")
        )
        Path("reward.py").write_text(source)
        trainer = build(
            "data.train_files=train.parquet", "data.train_batch_size=8", "data.max_prompt_length=32",
            "data.max_response_length=64", f"actor_rollout_ref.model.path={NANO}", "trainer.device=cpu",
            f"trainer.total_training_steps={steps}", "trainer.save_freq=-1", "trainer.default_local_dir=run",
            "trainer.logger=jsonl", "custom_reward_function.path=reward.py", "reward.num_workers=1",
            *(GRPO if "algorithm.adv_estimator=gae" not in keys else []), *keys,
        )  # fmt: skip
        trainer.init_workers()
        trainer.fit()
        return {event["rule"]: event for event in events("finding")}

    return train


@pytest.mark.parametrize(
    ("rule", "evidence", "remedy", "reward", "steps", "keys"),
    [
        ("equal_rewards", "the reward 0", "--reward", "zero", 4, []),
        ("equal_rewards", "the reward 0", "--reward", "zero", 4, PPO),
        ("equal_rewards", "the reward 0", "optim.lr from 0.01 to 0.001", "right", 14, [f"{LR}=1e-2"]),
        ("cut_responses", "cut at 8 tokens", "from 8 to 32", "right", 6, ["data.max_response_length=8"]),
        ("repeated_text", "repeat themselves", "optim.lr", "ones", 16, [f"{LR}=1e-3"]),
        ("entropy_collapse", "entropy fell", "optim.lr", "right", 16, [*PPO, f"{LR}=1e-2"]),
        ("entropy_explosion", "turn into noise", "entropy bonus", "zero", 16,
         [f"{LR}=3e-3", f"{ACTOR}.entropy_coeff=1"]),
        ("reward_fell", "the mean reward fell", "optim.lr", "right", 24, [f"{LR}=3e-3"]),
        ("kl_too_large", "per token", "kl_loss_coef", "right", 12, [f"{LR}=1e-2", *KL]),
        ("length_only", "the reward pays for length", "overlong_buffer", "length", 16, [f"{LR}=1e-4"]),
        ("nothing_moves", "neither reward, entropy nor length", "from 1e-09 to 1e-08", "right", 30, [f"{LR}=1e-9"]),
        ("updates_without_effect", "the 2 updates of a step", "from 1e-09 to 1e-08", "right", 20,
         [f"{LR}=1e-9", f"{ACTOR}.ppo_mini_batch_size=4"]),
        ("ratio_clipping", "updates leave the trusted region", "clip_ratio from 0.0003 to 0.2", "noise", 5,
         [f"{LR}=3e-4", f"{ACTOR}.ppo_epochs=4", f"{ACTOR}.clip_ratio=0.0003",
          "actor_rollout_ref.rollout.temperature=2"]),
        ("reward_without_trend", "has not risen", "score one twice", "noise", 60, [f"{LR}=1e-4"]),
        ("useful_groups", "had different rewards", "filter_groups", "rare", 14, [f"{LR}=1e-9"]),
        ("critic_explains_nothing", "explained variance", "critic.optim.lr", "right", 21,
         [*PPO, f"{LR}=1e-9", "critic.optim.lr=1e-9"]),
        ("reward_part_dominates", "chars decides alone", "functions.chars.weight from 1 to 0.0", "right", 10,
         [*PARTS, f"{LR}=1e-5"]),
        ("unscored", "could not be scored", "--reward", "fails", 6,
         ["reward.max_failure_ratio=1", "reward.on_error=zero"]),
    ],
)  # fmt: skip
def test_run_that_goes_wrong_is_found(run, rule, evidence, remedy, reward, steps, keys):
    found = run(reward, steps, *keys)[rule]
    assert evidence in found["evidence"] and remedy in found["remedy"], found
    assert not OPPOSITES.get(rule, set()) & set(found)
    health = read_health("run")
    assert rule in health.found and health.found[rule].worst.severity == found["severity"]


@pytest.mark.parametrize("keys", [[], PPO, KL, ["algorithm.adv_estimator=rloo"]], ids=["grpo", "ppo", "kl", "rloo"])
def test_run_that_learns_raises_no_alarm(run, keys):
    found = run("right", 25, f"{LR}=1e-4", *keys)
    assert {event["severity"] for event in found.values()} <= {NOTE}, found
    assert read_health("run").verdict().startswith("learned")


@pytest.mark.parametrize(
    ("command", "rule", "evidence", "remedy", "examples", "keys"),
    [
        (sft, "overfitting", "the validation loss rose from", "take global_step_", 16,
         ["optim.lr=3e-3", "trainer.total_training_steps=60"]),
        (sft, "loss_rises", "the training loss rose from", "optim.lr from 0.1 to 0.033", 400,
         ["optim.lr=0.1", "optim.lr_warmup_steps=40", "trainer.total_training_steps=40"]),
        (sft, "loss_stays", "the training loss is what it was", "optim.lr from 1e-09 to 1e-08", 400,
         ["optim.lr=1e-9", "trainer.total_training_steps=100"]),
        (rm, "pairs_at_chance", "of the pairs had the higher reward: chance", "tell the two answers apart", 1600,
         ["optim.lr=1e-4", "trainer.total_training_steps=100"]),
    ],
)  # fmt: skip
def test_supervised_run_that_goes_wrong_is_found(
    command, rule, evidence, remedy, examples, keys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    coin = random.Random(0)
    for split, count in (("train", examples), ("test", 64)):
        questions = arithmetic.questions(split, count, seed=0)
        if command is sft:
            rows = [arithmetic.sft_row(*q, arithmetic.scratchpad(*q)) for q in questions]
        else:  # which answer is better says a coin
            sides = [coin.sample(["answer: 1", "answer: 2"], 2) for _ in questions]
            rows = [
                {"prompt": arithmetic.question(*q), "chosen": a, "rejected": b}
                for q, (a, b) in zip(questions, sides, strict=True)
            ]
        write_parquet(rows, f"{split}.parquet")
    words = ["data.train_files=train.parquet", "data.val_files=test.parquet", "data.max_length=128"]
    words += ["data.train_batch_size=16", f"model.path={NANO}", "trainer.device=cpu", "trainer.default_local_dir=run"]
    command([*words, "trainer.logger=jsonl", "trainer.test_freq=5", "trainer.save_freq=5", *keys])
    found = {event["rule"]: event for event in events("finding")}[rule]
    assert evidence in found["evidence"] and remedy in found["remedy"], found
    assert read_health("run").found[rule].worst.severity == found["severity"]
