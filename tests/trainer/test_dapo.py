"""Dynamic sampling: groups that are all alike are dropped, others are drawn, and the run can be told what happened."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from burnish.agents import AgentLoopOutput
from burnish.agents.runner import Trajectory
from burnish.errors import NothingToLearn, RewardError
from burnish.protocol import DataProto
from burnish.trainer.filter import Sieve
from burnish.workers.trajectories import to_batch
from tests.trainer.conftest import events, rollouts, same, same_weights, state_of

DAPO = ["algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=3", "algorithm.filter_groups.enable=true",
        "algorithm.filter_groups.metric=score", "data.val_files=null", "data.shuffle=false"]  # fmt: skip
# Rows 0, 3, 6 and 9 are solved by every answer, rows 1, 4, 7 and 10 by none; the others tell answers apart.
THIRD = """kind = extra_info["index"] % 3
    score = {0: 100.0, 1: 0.0, 2: 1.0 + sum(map(ord, solution_str)) % 97}[kind]"""
SOME = f"{THIRD}\n    return score"


def figures(line, *names):
    return [line[f"filter_groups/{name}"] for name in names]


def drawn(step, run="run"):
    return state_of(step, run)["experience"]["position"]


def test_the_batch_is_refilled_with_groups_that_differ(train, reward, metrics_of, caplog):
    """A third of the rows differ, so a batch of 4 takes three rounds of 4 (12 rows: a pass), and the stream goes on."""
    reward(SOME)
    train(*DAPO, "trainer.total_training_steps=2", "trainer.save_freq=1")
    for step, line in enumerate(metrics_of("run"), 1):
        rows = rollouts(step)
        uids = sorted({row["uid"] for row in rows})
        assert uids == [uid + 12 * (step - 1) for uid in (2, 5, 8, 11)] and len(rows) == 12
        for uid in uids:
            assert len({row["score"] for row in rows if row["uid"] == uid}) > 1
        assert figures(line, "rounds", "generated_groups", "kept_groups", "dropped_groups") == [3, 12, 4, 8]
        assert figures(line, "surplus_groups", "dropped_highest", "dropped_lowest") == [0, 4, 4]
        assert line["filter_groups/kept_ratio"] == pytest.approx(1 / 3)
        assert line["actor/grad_norm"] > 0
        assert drawn(step) == 12 * step
    assert events("filter_groups_short") == []
    by_acc = ["algorithm.filter_groups.metric=acc", "trainer.default_local_dir=acc"]
    train(*DAPO, *by_acc, "trainer.total_training_steps=2")
    assert caplog.text.count("returns no acc, so the score is used instead") == 1
    assert metrics_of("acc") == metrics_of("run")


def test_larger_rounds_leave_a_surplus_that_is_not_trained(train, reward, metrics_of):
    reward(SOME)
    train(*DAPO, "data.gen_batch_size=9", "trainer.total_training_steps=1", "data.train_batch_size=2")
    counts = figures(metrics_of("run")[0], "rounds", "generated_groups", "kept_groups", "surplus_groups", "kept_ratio")
    assert counts == [1, 9, 2, 1, pytest.approx(2 / 9)] and drawn(1) == 9
    assert {row["uid"] for row in rollouts(1)} == {2, 5}, "the first in the stream, not the first to finish"


def test_rounds_make_the_batch_that_one_large_round_makes(build_trainer, reward, caplog):
    """Joining pads and loses nothing: noise belongs to the uid, not to the round. Many rounds say how far they are."""
    reward(SOME)
    caplog.set_level("INFO", logger="burnish")
    batches, sums = [], []
    for size in (1, 12):
        trainer, metrics = build_trainer(*DAPO, f"data.gen_batch_size={size}", f"trainer.default_local_dir=r{size}"), {}
        published = []
        trainer.policy.update_weights = published.append
        batches.append(trainer.experience.draw(1, metrics)[0])
        assert published == [0], "once per step, whatever the rounds"
        assert metrics["filter_groups/rounds"] == 12 / size and metrics["timing_s/gen"] > 0
        sums.append({name: value for name, value in metrics.items() if name.startswith("failures/")})
        trainer.close()
    said = [record.getMessage() for record in caplog.records if "dynamic sampling:" in record.getMessage()]
    assert [line.split(": ")[1].split()[0] for line in said] == ["2", "4", "8"]
    many, one = batches
    assert sums[0] == sums[1] and many.non_tensor_batch.keys() == one.non_tensor_batch.keys()
    assert many.non_tensor_batch["uid"].tolist() == one.non_tensor_batch["uid"].tolist()
    for name in ("responses", "response_mask", "rollout_log_probs", "token_level_scores"):
        width = min(many.batch[name].shape[1], one.batch[name].shape[1])
        exact = {} if name == "rollout_log_probs" else {"atol": 0, "rtol": 0}  # a pass of another size rounds otherwise
        torch.testing.assert_close(many.batch[name][:, :width], one.batch[name][:, :width], **exact)
        assert not many.batch[name][:, width:].any() or name == "responses"


def test_after_the_last_round_it_trains_on_what_there_is(train, reward, metrics_of, caplog):
    reward(SOME)
    train(*DAPO, "algorithm.filter_groups.max_num_gen_batches=2", "trainer.total_training_steps=3")
    lines = metrics_of("run")
    assert [line["filter_groups/rounds"] for line in lines] == [2, 2, 2]
    kept = [line["filter_groups/kept_groups"] for line in lines]
    assert kept == [2, 3, 3] and [len(rollouts(step)) for step in (1, 2, 3)] == [3 * count for count in kept]
    said = [record.getMessage() for record in caplog.records if "max_num_gen_batches" in record.getMessage()]
    assert len(said) == 1 and said[0].startswith("step 1 trains on 2 of 4 groups: of the 8 that were generated in 2")
    told = [[e[k] for k in ("step", "kept", "wanted", "generated", "rounds")] for e in events("filter_groups_short")]
    assert told == [[step, count, 4, 8, 2] for step, count in enumerate(kept, 1)]


@pytest.mark.parametrize(
    ("limit", "rounds", "advice"), [(2, 2, r"raise \S+\.max_num_gen_batches=2, raise"), (0, 3, "")]
)
def test_nothing_to_learn_from_ends_the_run(train, reward, limit, rounds, advice):
    """Without a limit, after one pass over the 12 rows that brought nothing."""
    reward("return 0.0")
    groups = 4 * rounds
    expected = rf"in each of the {groups} groups of {rounds} rounds all samples have the same score .*: 0 in {groups}\."
    with pytest.raises(RewardError, match=rf"step 1: nothing to learn from: {expected} .*too hard.*{advice}"):
        train(*DAPO, f"algorithm.filter_groups.max_num_gen_batches={limit}", "trainer.total_training_steps=1")


def test_what_was_learned_is_saved_before_a_run_ends_that_has_solved_its_prompts(train, reward):
    """The first four rows tell answers apart; from the second step on every answer is right."""
    reward("return float(sum(map(ord, solution_str)) % 97) if extra_info['index'] < 4 else 1.0")
    keys = [*DAPO, "algorithm.filter_groups.max_num_gen_batches=2"]
    train(*keys, "trainer.total_training_steps=1", "trainer.default_local_dir=short")
    with pytest.raises(NothingToLearn, match=r"step 2: .*solves these prompts.*learned is in run/global_step_1"):
        train(*keys, "trainer.total_training_steps=3")
    assert same_weights(1, "short", "run")
    assert drawn(1) == drawn(1, "short") == 4, "the rounds in vain are forgotten: another limit may go on from here"


def test_what_was_learned_replaces_a_checkpoint_of_another_run(train, reward):
    """A run that went further left global_step_2; the one that starts again from step 1 has learned something else."""
    reward("return float(sum(map(ord, solution_str)) % 97) if extra_info['index'] < 8 else 1.0")
    train(*DAPO, "trainer.total_training_steps=2", "trainer.save_freq=1")
    theirs = load_file("run/global_step_2/actor/model.safetensors")
    with pytest.raises(NothingToLearn, match=r"step 3: .*learned is in run/global_step_2"):
        train(*DAPO, "trainer.total_training_steps=3", "trainer.resume_from_path=run/global_step_1",
              "actor_rollout_ref.actor.optim.lr=1e-2", "algorithm.filter_groups.max_num_gen_batches=1",
              "trainer.save_freq=-1")  # fmt: skip
    assert not same(theirs, load_file("run/global_step_2/actor/model.safetensors"))


def test_a_failed_sample_counts_as_zero(train, reward, metrics_of):
    reward("assert extra_info['index'] % 3; return dict(score=1.0, acc=float(len(set(solution_str)) % 2))")
    keys = ["reward.on_error=zero", "reward.max_failure_ratio=1", "reward.retries=0", "trainer.total_training_steps=1"]
    train(*DAPO, "algorithm.filter_groups.metric=acc", *keys)
    assert metrics_of("run")[0]["filter_groups/kept_groups"] > 0


def test_a_pass_that_brings_nothing_more_ends_the_rounds(train, reward, metrics_of):
    """Only the first answer to row 2 ever differs: one group is kept, and then nothing for the length of a pass."""
    reward("""import os
    if extra_info["index"] != 2 or os.path.exists("seen"):
        return 0.0
    open("seen", "x").close()
    return 1.0""")
    train(*DAPO, "trainer.total_training_steps=1")
    assert figures(metrics_of("run")[0], "kept_groups", "rounds", "generated_groups") == [1, 4, 16]
    assert len(events("filter_groups_short")) == 1


@pytest.mark.parametrize(("metric", "kept"), [("acc", {1, 4}), ("quality", {2, 5}), ("seq_reward", {0, 1, 2, 3})])
def test_the_metric_says_what_must_differ(train, reward, metric, kept):
    reward("""kind, noise = extra_info["index"] % 3, float(sum(map(ord, solution_str)) % 97)
    return dict(score=noise, acc=noise if kind == 1 else 1.0, quality=noise if kind == 2 else 0.5)""")
    keys = ["algorithm.filter_groups.max_num_gen_batches=2", "data.gen_batch_size=3"]
    train(*DAPO, *keys, f"algorithm.filter_groups.metric={metric}", "trainer.total_training_steps=1")
    assert {row["uid"] for row in rollouts(1)} == kept


def test_a_missing_acc_value_is_named(train, reward):
    who = r"metric=acc: what the reward function returned for uid 0 \(data_source burnish/arithmetic\) "
    for returned, found in (
        ("{}", r"has no such value under that name; it has score\."),
        ("dict(acc=float('nan'))", r"has nan, which is no finite number, under that name; it has score, acc\."),
        ("dict(acc='yes')", r"has 'yes', which is no finite number, under that name"),
    ):
        reward(f"return dict(score=1.0, **(dict(acc=1.0) if extra_info['index'] else {returned}))")
        with pytest.raises(RewardError, match=rf"{who}{found}"):
            train(*DAPO, "algorithm.filter_groups.metric=acc", "trainer.total_training_steps=1")


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize(("bare", "said"), [(0, "but not in earlier rounds, in which"), (1, "has no such value")])
def test_acc_for_some_rows_ends_the_run_whatever_the_rounds(train, reward, bare, said, size):
    """The first round decides what is compared, and no later one is compared by something else. Every other row is
    `bare` of acc, from the first on or from the second."""
    reward(f"""noise = float(sum(map(ord, solution_str)) % 97)
    return dict(score=noise, **(dict(acc=noise) if extra_info["index"] % 2 != {bare} else dict()))""")
    said = said if size == 1 else "has no such value"
    with pytest.raises(RewardError, match=rf"filter_groups.metric=acc: .* uid [01] \(data_source .*{said}.*every sa"):
        train(*DAPO, "algorithm.filter_groups.metric=acc", f"data.gen_batch_size={size}")


def test_the_penalty_is_in_the_score_that_must_differ(train, reward, metrics_of):
    """Equal scores, but answers of different length: the penalty alone tells them apart."""
    reward("return 1.0")
    overlong = ["algorithm.overlong_buffer.enable=true", "algorithm.overlong_buffer.len=8"]
    train(*DAPO, *overlong, "trainer.total_training_steps=1", "actor_rollout_ref.rollout.n=6")
    groups = {}
    for row in rollouts(1):
        groups.setdefault(row["uid"], set()).add(len(row["response_mask"]))
    assert groups and all(len(lengths) > 1 for lengths in groups.values())


def test_dropped_groups_propose_prompts_too(train, reward, metrics_of):
    """Every sample of the three rounds proposes its row's child, so all 12 are there; the counts are the step's."""
    reward(f"""{THIRD}
    index = extra_info["index"]
    row = dict(prompt=str(index) + "+1=?", extra_info=dict(index=index + 12), data_source="next")
    return dict(score=score, new_prompts=[row] if index < 12 else [])""")
    train(*DAPO, "data.augment.enable=true", "trainer.total_training_steps=1")
    [first] = metrics_of("run")
    rounds = first["filter_groups/rounds"]
    assert rounds >= 3 and first["augment/added"] + first["augment/duplicates"] == 3 * drawn(1)
    state = state_of(1)["experience"]
    assert state["drawn"] == 4 * rounds and first["augment/waiting"] == len(state["augment"]["waiting"])
    proposed = state["drawn"] - state["position"]
    assert 0 < proposed == pytest.approx(first["augment/share"] * state["drawn"])


def test_it_works_for_an_estimator_without_groups(train, reward, metrics_of):
    reward(SOME)
    train(*DAPO, "algorithm.adv_estimator=gae", "actor_rollout_ref.rollout.n=4", "trainer.total_training_steps=1")
    assert metrics_of("run")[0]["filter_groups/kept_groups"] == 4 and len(rollouts(1)) == 16


@pytest.mark.parametrize("estimator", ["grpo", "remax"])
def test_the_speed_of_generation_counts_all_that_was_generated(build_trainer, reward, estimator):
    """Dropped groups and greedy answers, which are in no group, took their time too. What the batch takes is counted by
    its own tokens."""
    reward(SOME)
    trainer = build_trainer(*DAPO, f"algorithm.adv_estimator={estimator}", "trainer.total_training_steps=1")
    generate, tokens, rows = trainer.policy.finish_sequences, [], []

    def counted(*arguments):
        batch = generate(*arguments)
        rows.append(len(batch))
        tokens.append(int(batch.batch["attention_mask"][:, batch.batch["prompts"].shape[1] :].sum()))
        return batch

    trainer.policy.finish_sequences = counted
    metrics = trainer.fit()
    trained = sum(len(row["response_mask"]) for row in rollouts(1))
    assert figures(metrics, "rounds", "kept_groups", "dropped_groups") == [3, 4, 8] and len(rollouts(1)) == 12
    assert estimator == "grpo" or metrics["critic/greedy_baseline/mean"] > 0
    assert sum(rows) == 12 * (4 if estimator == "remax" else 3) and len(tokens) == 3
    assert metrics["perf/generated_tokens"] == sum(tokens) > 2 * trained
    assert metrics["timing_per_token_ms/gen"] == pytest.approx(metrics["timing_s/gen"] * 1000 / sum(tokens))
    per_token = metrics["timing_s/update_actor"] * 1000 / metrics["perf/total_num_tokens"]
    assert metrics["timing_per_token_ms/update_actor"] == pytest.approx(per_token)
    assert metrics["perf/total_num_tokens"] == pytest.approx(12 * metrics["prompt_length/mean"] + trained)


def test_a_run_that_ends_between_two_rounds_resumes_as_if_it_had_not(build_trainer, reward, train, metrics_of):
    reward(SOME)
    common = [*DAPO, "trainer.save_freq=1", "trainer.total_training_steps=4"]
    train(*common, "trainer.default_local_dir=whole")
    trainer = build_trainer(*common, "trainer.default_local_dir=parts")
    generate, calls = trainer.policy.finish_sequences, []

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) == 8:  # the second round of step 3
            raise KeyboardInterrupt
        return generate(*arguments)

    trainer.policy.finish_sequences = interrupted
    with pytest.raises(KeyboardInterrupt):
        trainer.fit()
    assert trainer.step == 3 and trainer.experience.drawn > drawn(2, "parts") and len(metrics_of("parts")) == 2
    train(*common, "trainer.default_local_dir=parts")
    assert metrics_of("whole") == metrics_of("parts") and len(metrics_of("whole")) == 4
    assert [rollouts(step, "whole") for step in range(1, 5)] == [rollouts(step, "parts") for step in range(1, 5)]
    assert same_weights(4, "whole", "parts", "actor/model.safetensors", "actor/optimizer.safetensors")


def sifted(wanted, *rounds):
    sieve = Sieve(wanted)
    for uids, values in rounds:
        output = AgentLoopOutput([7] * 2, [1] * 3, [1] * 3, [-0.5] * 3)
        batch = to_batch([Trajectory({"data_source": "toy"}, output, "text") for _ in uids], 0)
        batch.batch["token_level_scores"] = torch.tensor([[0.0, 0.0, value] for value in values])
        facts = {"uid": list(uids), "reward_info": [{"score": value} for value in values]}
        sieve.add(batch.union(DataProto.from_dict(non_tensors=facts)), np.array(values, dtype=np.float64))
    kept = [uid for batch in sieve.kept for uid in batch.non_tensor_batch["uid"]]
    return kept, {name.split("/")[1]: value for name, value in sieve.metrics().items()}


def test_groups_that_are_kept():
    """Not those of one, and values are compared as they are: eight times 0.3 has a deviation above 0 in float32."""
    kept, metrics = sifted(4, ([0, 1, 1, 2, 2, 2], [5, 1, 2, 3, 3, 3]))
    assert kept == [1, 1] and (metrics["generated_groups"], metrics["dropped_groups"]) == (3, 2)
    assert sifted(4, ([0] * 8 + [1] * 8, [0.3] * 8 + [0.3] * 7 + [0.30001]))[0] == [1] * 8


PAIRS = [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("rounds", "highest", "lowest"),
    [
        ([(PAIRS, [1, 1, 0, 0, 0, 0])], 1, 2),
        *(([(PAIRS, [value] * 6)], *ends) for value, ends in ((0, (0, 3)), (1, (3, 0)), (-1, (0, 3)))),
        ([(PAIRS, [2, 2, 1, 1, 0, 0])], 1, 1),
        ([([0, 0], [1, 1]), ([1, 1, 2, 2], [0, 2, 2, 2])], 1, 0),  # the ends are the step's
    ],
)
def test_dropped_groups_at_the_ends(rounds, highest, lowest):
    _, metrics = sifted(3, *rounds)
    assert (metrics["dropped_highest"], metrics["dropped_lowest"]) == (highest, lowest)
