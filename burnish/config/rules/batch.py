"""Batch sizes: responses per prompt, prompts per step, round and optimiser step, and what follows the actor's."""

import math

from burnish.config.key import read, write
from burnish.config.ppo import PPOConfig
from burnish.config.rules import Given, at_default, fill
from burnish.errors import ConfigError

N, N_AGENT = "actor_rollout_ref.rollout.n", "actor_rollout_ref.rollout.n_agent"
TRAIN, MINI = "data.train_batch_size", "actor_rollout_ref.actor.ppo_mini_batch_size"
GEN, FILTER = "data.gen_batch_size", "algorithm.filter_groups"
GROUP_SIZE = 4


def group_size(config: PPOConfig, given: Given) -> None:
    """`rollout.n`: 4 where responses to one prompt are compared, else 1; `n_agent` is another name for it."""
    rollout, estimator = config.actor_rollout_ref.rollout, config.algorithm.adv_estimator
    compares = given.needs.groups or config.algorithm.filter_groups.enable
    by_estimator = (estimator, f"algorithm.adv_estimator={estimator}")
    who, switch = by_estimator if given.needs.groups else (FILTER, f"{FILTER}.enable=true")
    if rollout.n_agent is not None:
        if rollout.n not in (None, rollout.n_agent):
            raise ConfigError(f"{N}={rollout.n} and {N_AGENT}={rollout.n_agent} are the same thing; keep one")
        rollout.n = rollout.n_agent
    if rollout.n is None:
        rollout.n = GROUP_SIZE if compares else 1
        if compares:
            given.say(f"{N}={GROUP_SIZE}: {who} compares the responses to one prompt, and none was asked for")
    if compares and rollout.n == 1:
        raise ConfigError(
            f"{N}=1: {switch} compares the responses to one prompt and needs at least 2; leave {N} out for {GROUP_SIZE}"
        )
    if compares and not rollout.do_sample:
        raise ConfigError(
            f"actor_rollout_ref.rollout.do_sample=false gives {rollout.n} equal responses, and "
            f"{switch} has nothing to compare; leave it out"
        )
    rollout.n_agent = rollout.n


def mini_batches(config: PPOConfig, given: Given) -> None:
    data, actor, critic = config.data, config.actor_rollout_ref.actor, config.critic
    if at_default(actor, "ppo_mini_batch_size") and actor.ppo_mini_batch_size > data.train_batch_size:
        if critic.ppo_mini_batch_size == actor.ppo_mini_batch_size:  # as where a recipe refers to the actor's
            critic.ppo_mini_batch_size = None  # type: ignore[assignment]
        actor.ppo_mini_batch_size = data.train_batch_size
        given.say(f"{MINI}={data.train_batch_size}: the whole of {TRAIN}")
    fill(critic, ppo_mini_batch_size=actor.ppo_mini_batch_size)
    check_divides(data.train_batch_size, MINI, actor.ppo_mini_batch_size, given)
    check_divides(data.train_batch_size, "critic.ppo_mini_batch_size", critic.ppo_mini_batch_size, given)
    _generation_rounds(config, given)


def _generation_rounds(config: PPOConfig, given: Given) -> None:
    """Rounds of another size than the batch, and all of `algorithm.filter_groups`, are for dropping groups. Runs after
    the KL terms are known."""
    data, filters = config.data, config.algorithm.filter_groups
    fill(data, gen_batch_size=data.train_batch_size)
    if not filters.enable:
        if data.gen_batch_size != data.train_batch_size:
            raise ConfigError(
                f"{GEN}={data.gen_batch_size} with {TRAIN}={data.train_batch_size}: rounds of another size are for "
                f"{FILTER}, which drops groups and draws others; set {FILTER}.enable=true, or leave {GEN} out"
            )
        given.off(FILTER)
        return
    most = filters.max_num_gen_batches
    if most and most * data.gen_batch_size < data.train_batch_size:
        raise ConfigError(
            f"{FILTER}.max_num_gen_batches={most} rounds of {GEN}={data.gen_batch_size} prompts never fill {TRAIN}="
            f"{data.train_batch_size}; raise one of them, or set max_num_gen_batches=0 for no limit"
        )
    if filters.metric == "seq_final_reward" and config.algorithm.use_kl_in_reward:
        raise ConfigError(
            f"{FILTER}.metric=seq_final_reward with a KL term in the reward: groups are chosen before the KL is known; "
            f"set {FILTER}.metric=seq_reward, which leaves it out, or acc"
        )


def fit_to_rows(config: PPOConfig, rows: int) -> list[str]:
    """Reduce a batch of more prompts than there are rows, to a multiple of the mini-batches where they fit; returns
    notices. Runs once the files are known. Nothing is reduced where a user's class makes the rows, or where rows are
    added while training."""
    data, asked = config.data, config.data.train_batch_size
    if asked <= rows or data.custom_cls.path or data.augment.enable:
        return []
    minis = [MINI]
    minis += ["critic.ppo_mini_batch_size"] if config.critic.enable else []
    minis += ["process_reward.mini_batch_size"] if config.process_reward.enable else []
    whole = math.lcm(*(read(config, name) for name in minis))
    data.train_batch_size = size = rows - rows % whole if whole <= rows else rows
    if data.gen_batch_size == asked:
        data.gen_batch_size = size
    notices = [f"{TRAIN}={size}, not {asked}: there are {rows} rows to train on"]
    for name in minis:
        if size % read(config, name):
            write(config, name, size)
            notices.append(f"{name}={size}: the whole of {TRAIN}")
    return notices


def check_divides(total: int, key: str, size: int, given: Given) -> None:
    batch, mini = (
        f"{name}={value}" + ("" if name in given else " (the default)") for name, value in ((TRAIN, total), (key, size))
    )
    if size > total:
        raise ConfigError(f"{mini} is more than {batch}: a step has no more prompts than that")
    if total % size:
        fitting = [other for other in range(1, total + 1) if total % other == 0]
        below = max(other for other in fitting if other < size)
        above = min(other for other in fitting if other > size)
        raise ConfigError(
            f"{batch} is not a multiple of {mini}: the nearest sizes that divide it are {below} and {above}; "
            f"set {key} to one of them"
        )


def micro_batches(config: PPOConfig, given: Given) -> None:
    """Passes without their own size use the actor's."""
    policy, critic = config.actor_rollout_ref, config.critic
    actor, tokens = policy.actor, policy.actor.ppo_max_token_len_per_gpu
    for part in (policy.ref, policy.rollout):
        fill(part, log_prob_use_dynamic_bsz=actor.use_dynamic_bsz, log_prob_max_token_len_per_gpu=tokens)
    same = ("use_dynamic_bsz", "ppo_max_token_len_per_gpu", "ppo_epochs", "shuffle", "loss_agg_mode")
    fill(critic, **{name: getattr(actor, name) for name in same})
    fill(critic, forward_max_token_len_per_gpu=critic.ppo_max_token_len_per_gpu)
    fill(critic, forward_micro_batch_size_per_gpu=critic.ppo_micro_batch_size_per_gpu)
    if actor.use_dynamic_bsz and actor.ppo_micro_batch_size_per_gpu is not None:
        given.cut_by_tokens("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu", "ppo_max_token_len_per_gpu")
