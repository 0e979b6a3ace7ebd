"""Rewards and masks of trajectories with several turns: which tokens are trained, and with what."""

from pathlib import Path

import pytest
import torch

from burnish.data.files import write_parquet
from burnish.workers import critic, objectives
from tests.trainer.scripted import call, follow, question, write_echo

GRPO = ["algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=2"]
KL = ["actor_rollout_ref.actor.use_kl_loss=true", "actor_rollout_ref.actor.entropy_coeff=0.1"]
CRITIC = ["algorithm.adv_estimator=gae", "critic.optim.lr=1e-3"]
GAE = [*CRITIC, "algorithm.use_kl_in_reward=true", "algorithm.lam=0.9", *KL]
WHITENED = ["algorithm.adv_estimator=reinforce_plus_plus", *KL]
TOOLS = ["data.max_prompt_length=64", "data.max_response_length=400", "custom_reward_function.path=null",
         "actor_rollout_ref.rollout.multi_turn.enable=true", "data.val_files=null"]  # fmt: skip
REWARDS = "actor_rollout_ref.rollout.multi_turn.rewards"
MANAGER = '''
import torch

class Tens:
    """Ten for every response, on its last token; computes its scores itself."""

    def __init__(self, tokenizer, num_examine, compute_score, reward_fn_key): ...

    def __call__(self, data, return_dict=False):
        mask = data.batch["response_mask"]
        rewards = torch.zeros(mask.shape)
        rewards[torch.arange(len(mask)), (mask * torch.arange(1, mask.shape[1] + 1)).argmax(-1)] = 10.0
        return {"reward_tensor": rewards, "reward_extra_info": {}}
'''


@pytest.fixture
def begin(build_trainer, roomy, monkeypatch):
    """A trainer on eight rows whose policy calls the tool twice (the second sample once) and answers."""

    def write(asked):
        turns = [*map(call, ["ab", "cdef"][asked.sample :]), f"<answer>{['Goethe', 'no'][asked.sample]}</answer>"]
        return turns[asked.turn]

    def make(*overrides):
        write_parquet([question(f"Who wrote Faust? {i}") for i in range(8)], "train.parquet")
        follow(monkeypatch, write)
        keys = [*TOOLS, write_echo(), f"actor_rollout_ref.model.path={roomy}"]
        trainers.append(build_trainer(*keys, *overrides))
        return trainers[-1]

    trainers = []
    yield make
    for trainer in trainers:
        trainer.close()


def ends(mask):
    return [i for i, m in enumerate(mask) if m and (i + 1 == len(mask) or not mask[i + 1])]


def placed(batch):
    """Per row, the rewards at the ends of its turns; nothing may be elsewhere."""
    found = []
    columns = (batch.batch[name].tolist() for name in ("token_level_scores", "response_mask"))
    for scores, mask in zip(*columns, strict=True):
        found.append([scores[end] for end in ends(mask)])
        assert sum(scores) == pytest.approx(sum(found[-1]))
    return found


@pytest.mark.parametrize(
    ("rewards", "manager", "first", "second"),
    [
        ("trajectory", "naive", [0, 0, 1], [0, 0]),
        ("turn", "naive", [0.25, 0.25, 0], [0.25, 0]),
        ("both", "naive", [0.25, 0.25, 1], [0.25, 0]),
        ("trajectory", "tens.py:Tens", [0, 0, 10], [0, 10]),
        ("both", "tens.py:Tens", [0.25, 0.25, 10], [0.25, 10]),
    ],
)
def test_rewards_reach_the_last_token_of_their_turn(begin, rewards, manager, first, second):
    Path("tens.py").write_text(MANAGER)
    keys = [f"{REWARDS}={rewards}", f"reward_model.reward_manager={manager}"]
    assert placed(begin(*GRPO, *keys).experience.draw(1, {})[0]) == [first, second] * 4


def test_the_turns_of_an_interaction_are_rewarded(build_trainer, roomy, monkeypatch):
    """It answers until the number is right; only the turn that says so earns."""
    kwargs = {"name": "gsm8k", "query": "2+2", "ground_truth": "4"}
    write_parquet([question("2+2?", interaction_kwargs=kwargs)] * 4, "train.parquet")
    follow(monkeypatch, lambda asked: f"#### {[3, 4][asked.turn]}")
    trainer = build_trainer(*TOOLS, *GRPO, f"actor_rollout_ref.model.path={roomy}", f"{REWARDS}=turn")
    assert placed(trainer.experience.draw(1, {})[0]) == [[0, 1]] * 8
    trainer.close()


def test_rewards_of_turns_are_discounted_back_over_the_policys_tokens_alone(begin):
    """GAE over a response with gaps: the return at the end of turn one is what follows it, past what it observed."""
    discount = ["algorithm.gamma=0.5", "algorithm.lam=1.0"]
    trainer = begin(*CRITIC, *discount, f"{REWARDS}=both", "actor_rollout_ref.rollout.n=1")
    batch = trainer.experience.draw(1, {})[0]
    batch.batch["values"] = torch.zeros_like(batch.batch["token_level_scores"])
    returns = trainer.credit(batch, {}).batch["returns"][0]
    mask = batch.batch["response_mask"][0].bool()
    sampled, rewards = (column[mask].tolist() for column in (returns, batch.batch["token_level_scores"][0]))
    expected = 0.0
    for i in reversed(range(len(rewards))):
        expected = rewards[i] + 0.5 * expected
        assert sampled[i] == pytest.approx(expected, abs=1e-6)


def one_step(trainer, spoil):
    """A training step; with `spoil`, every column has other values where the policy observed something."""
    batch = trainer.experience.draw(1, {})[0]
    there = batch.batch["attention_mask"][:, -batch.batch["responses"].shape[1] :].bool()
    observed = (batch.batch["response_mask"] == 0) & there
    assert observed.any(-1).all()
    noise = torch.Generator().manual_seed(0)

    def change(*names):
        for name in names:
            if spoil and name in batch.batch:
                garbage = 3 * torch.randn(observed.shape, generator=noise)
                batch.batch[name] = torch.where(observed, garbage, batch.batch[name])

    batch = batch.union(trainer.policy.compute_log_prob(batch, trainer.credit.needs.outputs))
    if trainer.config.reads_reference:
        batch = batch.union(trainer.policy.compute_ref_log_prob(batch))
    if trainer.critic:
        batch = batch.union(trainer.critic.compute_values(batch))
    change("old_log_probs", "ref_log_prob", "values", "entropys", "rollout_log_probs")
    metrics = {}
    batch = trainer.credit(batch, metrics)
    assert not batch.batch["advantages"][observed].any(), "what it observed earns nothing"
    assert batch.batch["advantages"][batch.batch["response_mask"].bool()].any()
    change("advantages", "returns", "token_level_rewards")
    metrics |= trainer.describe(batch)
    if trainer.critic:
        metrics |= {k: v for k, v in trainer.critic.update_critic(batch, 1).items() if not k.startswith("perf/")}
    metrics |= {k: v for k, v in trainer.policy.update_actor(batch, 1).items() if not k.startswith("perf/")}
    models = [trainer.policy.worker.actor.module, *([trainer.critic.worker.critic.module] if trainer.critic else [])]
    return metrics, [dict(model.state_dict()) for model in models]


def differing(one, other):
    return {name for name in one if torch.as_tensor(one[name]).ne(torch.as_tensor(other[name])).any()}


@pytest.mark.parametrize("algorithm", [GRPO, GAE, WHITENED], ids=["grpo", "gae", "reinforce_plus_plus"])
def test_nothing_of_what_the_policy_observed_reaches_an_update(begin, monkeypatch, algorithm):
    """Loss, entropy, KL in loss and reward, whitening, values: all are the same whatever stands at those tokens."""
    steps, kept = [], gradients(monkeypatch)
    for name in ("plain", "spoilt"):
        trainer = begin(*algorithm, "actor_rollout_ref.rollout.n=2", f"trainer.default_local_dir={name}")
        steps.append(one_step(trainer, spoil=name == "spoilt"))
    (metrics, weights), (spoilt_metrics, spoilt_weights) = steps
    other = differing(metrics, spoilt_metrics)
    assert not {name for name in other if not name.startswith(("timing", "tools/seconds"))}
    for one, other in zip(weights, spoilt_weights, strict=True):
        assert differing(one, other) == set()
    assert metrics["actor/grad_norm"][0] > 0 and ("critic/vf_loss" in metrics) == (algorithm is GAE)
    assert algorithm is not GAE or {name for name, *_ in kept} == {"log_prob", "entropy", "values"}
    for name, gradient, sampled, there in kept:
        observed = there & ~sampled
        assert observed.any() and not gradient[observed].any(), name
        assert gradient[sampled].ne(0).float().mean() > 0.9, name


def gradients(monkeypatch):
    """What the losses send back in an update: a list of (name, gradient (b, R), mask (b, R), tokens there (b, R))."""
    kept = []
    inputs, objective = objectives.PolicyObjective.inputs, critic.CriticWorker.objective
    plain = critic.value_loss

    def keep(name, tensor, micro):
        mask = micro.batch["response_mask"].bool()
        there = micro.batch["attention_mask"][:, -mask.shape[1] :].bool()
        tensor.register_hook(lambda gradient: kept.append((name, gradient, mask, there)))

    def watched(self, rows, passed):
        for name in passed:
            if passed[name].requires_grad:
                keep(name, passed[name], rows)
        return inputs(self, rows, passed)

    def watched_values(self, mini):
        def loss(micro):
            def value_loss(inputs):
                keep("values", inputs.vpreds, micro)
                return plain(inputs)

            with monkeypatch.context() as patch:
                patch.setattr(critic, "value_loss", value_loss)
                return objective(self, mini)(micro)

        return loss

    monkeypatch.setattr(objectives.PolicyObjective, "inputs", watched)
    monkeypatch.setattr(critic.CriticWorker, "objective", watched_values)
    return kept


def test_without_state_masking_all_of_the_response_is_trained(begin, monkeypatch):
    trainer = begin(*GRPO, *KL, "actor_rollout_ref.actor.state_masking=false")
    batch = trainer.experience.draw(1, {})[0]
    width = batch.batch["responses"].shape[1]
    there = batch.batch["attention_mask"][:, -width:]
    assert torch.equal(batch.batch["response_mask"], there) and "rollout_log_probs" not in batch.batch
    assert not there.all(), "some rows are padded"
    assert batch.batch["token_level_scores"].sum(-1).tolist() == [1, 0] * 4
    ends = [int(row.nonzero()) for row in batch.batch["token_level_scores"][::2]]
    assert ends == [int(n) - 1 for n in there[::2].sum(-1)]
    batch = batch.union(trainer.policy.compute_log_prob(batch, trainer.credit.needs.outputs))
    batch = trainer.credit(batch.union(trainer.policy.compute_ref_log_prob(batch)), {})
    assert batch.batch["advantages"][there.bool()].ne(0).all()
    kept = gradients(monkeypatch)
    assert trainer.policy.update_actor(batch, 1)["actor/grad_norm"][0] > 0 and kept
    for name, gradient, _, everywhere in kept:
        assert gradient[everywhere].ne(0).float().mean() > 0.95, name
