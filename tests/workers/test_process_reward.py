"""The process reward model on a small random model: it learns outcomes, its start stays, and a saved one goes on."""

import math
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from burnish.algorithms.metrics import reduce_metrics
from burnish.config import PPOConfig
from burnish.controller.local import LocalWorkerGroup
from burnish.errors import ModelError
from burnish.models.tiny import write_tiny_model
from burnish.workers.process_reward import ProcessRewardWorker

PROMPT, RESPONSE, GROUPS, SAMPLES = 4, 5, 4, 3


@pytest.fixture
def make_worker(tiny_model, tmp_path):

    def make(model: Path = tiny_model, **changes):
        config = PPOConfig()
        config.data.train_batch_size = GROUPS
        config.trainer.default_local_dir = str(tmp_path)
        config.actor_rollout_ref.model.path = str(tiny_model)
        section = config.process_reward
        section.model.path, section.enable = str(model), True
        section.mini_batch_size, section.use_dynamic_bsz, section.max_token_len_per_gpu = 2, False, 16
        section.optim.lr, section.beta = 1e-2, 1.0
        for name, value in changes.items():
            setattr(section, name, value)
        group = LocalWorkerGroup(ProcessRewardWorker(config, total_steps=10))
        group.init_model()
        return group

    return make


@pytest.fixture
def batch(token_batch):
    """Groups of answers with an observation inside; whether one is right is told by its first token."""
    random = torch.Generator().manual_seed(0)
    rows = GROUPS * SAMPLES
    prompts = torch.randint(3, 200, (GROUPS, PROMPT), generator=random).repeat_interleave(SAMPLES, 0)
    responses = torch.randint(3, 200, (rows, RESPONSE), generator=random)
    outcomes = (torch.arange(rows) % 2).float()
    responses[:, 0] = 50 + 50 * outcomes.long()
    data = token_batch(prompts, responses, SAMPLES, outcomes=outcomes)
    data.batch["response_mask"][:, 2] = 0  # a tool's answer
    return data


@pytest.fixture
def started(make_worker, batch):
    group = make_worker()
    return group, batch.union(group.compute_start_log_prob(batch))


def weights(module):
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


CUTS = [{}, {"micro_batch_size_per_gpu": 1}, {"micro_batch_size_per_gpu": 5}, {"use_dynamic_bsz": True}]


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_before_the_first_update_every_token_is_worth_nothing_and_the_cut_changes_no_update(make_worker, batch, cut):
    whole, parts = make_worker(), make_worker(**cut)
    own = batch.select().union(parts.compute_start_log_prob(batch))
    rewards = parts.compute_process_reward(own).batch["process_rewards"]
    assert rewards.shape == own.batch["responses"].shape and not rewards.any()
    assert own.batch["process_ref_log_prob"][own.batch["response_mask"] == 1].lt(0).all()

    batch = batch.union(whole.compute_start_log_prob(batch))
    one, two = (group.update_process_reward(batch, 1) for group in (whole, parts))
    for name in ("loss", "accuracy", "reward_mean", "grad_norm"):
        wanted, found = (metrics[f"process_reward/{name}"] for metrics in (one, two))
        assert found[0] == pytest.approx(wanted[0], rel=1e-5, abs=1e-6), name
        assert found == pytest.approx(wanted, rel=1e-3, abs=1e-5), name
    wanted, found = (group.compute_process_reward(batch).batch["process_rewards"] for group in (whole, parts))
    torch.testing.assert_close(found, wanted, atol=1e-3, rtol=1e-3)
    assert wanted.any()


def test_log_probs_are_those_of_the_plain_model(make_worker, batch, tiny_model):
    """At temperature 1, whatever the policy samples with."""
    group = make_worker()
    group.worker.config.actor_rollout_ref.rollout.temperature = 0.3
    batch = batch.union(group.compute_start_log_prob(batch))
    module = AutoModelForCausalLM.from_pretrained(tiny_model)
    with torch.no_grad():
        logits = module(batch.batch["input_ids"], attention_mask=batch.batch["attention_mask"]).logits
    log_p = logits[:, PROMPT - 1 : -1].log_softmax(-1)  # prompts are of one length: nothing is padded on the left
    want = log_p.gather(-1, batch.batch["responses"][..., None])[..., 0]
    inside = batch.batch["response_mask"] == 1
    torch.testing.assert_close(batch.batch["process_ref_log_prob"][inside], want[inside], atol=1e-5, rtol=0)


def test_it_learns_outcomes_and_rewards_tokens_while_its_start_stays(started):
    group, batch = started
    worker = group.worker
    before, trained = weights(worker.start.module), weights(worker.model.module)
    assert same(before, trained)
    steps = [group.update_process_reward(batch, step) for step in range(1, 9)]
    names = {f"process_reward/{name}" for name in ("loss", "accuracy", "reward_mean", "grad_norm", "lr", "bad_step")}
    assert names == {name for name in steps[0] if name.startswith("process_reward/")}
    assert all(len(steps[0][name]) == 2 for name in names)  # 4 groups in mini-batches of 2
    assert steps[0]["process_reward/lr"] == [1e-2, 1e-2] and steps[0]["process_reward/bad_step"] == [0, 0]
    assert steps[0]["process_reward/reward_mean"][0] == 0 != steps[0]["process_reward/reward_mean"][1]
    losses = [reduce_metrics(step)["process_reward/loss"] for step in steps]
    assert steps[0]["process_reward/loss"][0] == pytest.approx(math.log(2), abs=1e-6)
    assert losses[-1] < 0.1 < losses[0]
    assert reduce_metrics(steps[-1])["process_reward/accuracy"] == 1

    assert same(before, weights(worker.start.module))
    assert not same(trained, weights(worker.model.module))
    again = group.compute_start_log_prob(batch).batch["process_ref_log_prob"]
    assert torch.equal(again, batch.batch["process_ref_log_prob"])

    rewards = group.compute_process_reward(batch).batch["process_rewards"]
    assert not rewards[batch.batch["response_mask"] == 0].any()
    right = batch.batch["outcomes"] == 1
    assert rewards.sum(-1)[right].min() > 0 > rewards.sum(-1)[~right].max()
    first = rewards[:, 0]  # the token that tells right from wrong is credited for it
    assert first[right].min() > 0 > first[~right].max()
    worker.config.process_reward.beta = 0.25
    torch.testing.assert_close(group.compute_process_reward(batch).batch["process_rewards"], 0.25 * rewards)


def test_a_bad_outcome_is_a_bad_step_and_not_applied(started):
    group, batch = started
    batch.batch["outcomes"][0] = math.nan
    before = weights(group.worker.model.module)
    metrics = group.update_process_reward(batch[list(range(2 * SAMPLES))], 1)  # its own mini-batch and another
    assert metrics["process_reward/bad_step"] == [1, 0]
    assert not same(before, weights(group.worker.model.module)), "the other mini-batch is trained on"


def test_a_saved_model_resumes_bit_for_bit(make_worker, started, tmp_path):
    first, batch = started
    for step in (1, 2):
        first.update_process_reward(batch, step)
    first.save_checkpoint(tmp_path / "process_reward")
    second = make_worker()
    second.load_checkpoint(tmp_path / "process_reward")
    assert torch.equal(
        first.compute_process_reward(batch).batch["process_rewards"],
        second.compute_process_reward(batch).batch["process_rewards"],
    )
    metrics = [group.update_process_reward(batch, 3) for group in (first, second)]
    for name in metrics[0]:
        assert name.startswith("perf/") or metrics[0][name] == metrics[1][name], name
    assert same(weights(first.worker.model.module), weights(second.worker.model.module))
    assert same(weights(first.worker.start.module), weights(second.worker.start.module)), "not what was saved"

    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "process_reward")
    assert not same(weights(loaded), weights(first.worker.start.module))
    assert AutoTokenizer.from_pretrained(tmp_path / "process_reward").get_vocab() == first.worker.tokenizer.get_vocab()


def test_a_model_that_reads_other_tokens_is_refused(make_worker, tiny_model, tmp_path):
    other = write_tiny_model(tmp_path / "other", seed=1)
    make_worker(other)  # another model with the same tokenizer is fine
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    vocabulary = tokenizer.get_vocab()
    swapped = vocabulary | {"a": vocabulary["b"], "b": vocabulary["a"]}
    changed = type(tokenizer)(vocab=swapped, merges=[], unk_token=None, pad_token="<|pad|>", eos_token="<|end|>")
    changed.save_pretrained(other)
    with pytest.raises(ModelError, match=rf"process_reward.model.path={other}.*other ids for 2 of them, such as 'a'"):
        make_worker(other)
