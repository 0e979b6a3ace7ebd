"""The arithmetic of a run, its memory, and micro-batches that fit."""

from dataclasses import dataclass

import pytest
import torch
from transformers import AutoModelForCausalLM

from burnish.config import (
    Needs,
    estimate_memory,
    explain,
    plan_micro_batch,
    plan_micro_batches,
    plan_numbers,
    plan_table,
)
from burnish.config.memory import LOGITS_AT_A_TIME, gib, host_memory, sequences_at_a_time
from burnish.engine.forward import CHUNK_ELEMENTS
from burnish.models.tiny import write_tiny_model

GIB = 2**30
ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
KEYS = {"data.train_batch_size": 16, f"{ACTOR}.ppo_mini_batch_size": 4, f"{ROLLOUT}.n": 8}


@dataclass
class Sizes:
    parameters: int = 1_000_000
    layers: int = 4
    hidden: int = 128
    intermediate: int = 512
    vocab: int = 1000
    kv_heads: int = 2
    head_dim: int = 32


def sizes(**policy):
    """Sizes by model; those that are not there have the policy's."""
    return {"actor_rollout_ref.model": Sizes(**policy)}


def value(lines, name):
    (line,) = [line for line in lines if line.name == name]
    return line.value


def test_batches(finish):
    config, _ = finish(KEYS | {f"{ACTOR}.ppo_micro_batch_size_per_gpu": 6, f"{ACTOR}.ppo_epochs": 2})
    lines = plan_numbers(config, rows=100, facts=None)
    assert value(lines, "prompts per step") == "16"
    assert value(lines, "sequences per step") == "128"
    assert value(lines, "tokens per step, at most") == f"{128 * 1024:,}"
    assert value(lines, "mini-batches per step") == "4"
    assert value(lines, "sequences per mini-batch") == "32"
    assert value(lines, "micro-batches per mini-batch") == "6"  # 32 / 6, rounded up
    assert value(lines, "optimiser steps per step") == "8"
    assert value(lines, "steps in total") == "7"  # 100 / 16, rounded up


def test_steps(finish):
    config, _ = finish(KEYS | {"trainer.total_epochs": 3})
    assert value(plan_numbers(config, 100, None), "steps in total") == "19"  # 300 / 16, rounded up
    assert not any(line.name == "steps in total" for line in plan_numbers(config, None, None))
    config.trainer.total_training_steps = 5
    assert value(plan_numbers(config, None, None), "steps in total") == "5"


def test_a_critic_has_its_own_steps(finish):
    config, _ = finish(KEYS | {"critic.ppo_mini_batch_size": 8, "critic.ppo_epochs": 3}, Needs(critic=True))
    assert value(plan_numbers(config, None, None), "critic optimiser steps per step") == "6"


FILTER = {"algorithm.filter_groups.enable": True}
HF = {f"{ROLLOUT}.name": "hf"}  # keeps keys and values of what runs; the native engine has a pool


def test_rounds_of_generation_are_what_samples_together(finish):
    rounds = {"data.gen_batch_size": 48, "algorithm.filter_groups.max_num_gen_batches": 3}
    config, _ = finish(KEYS | FILTER | HF | rounds)
    lines = plan_numbers(config, None, sizes())
    assert value(lines, "prompts per generation round") == "48"
    assert "at most 3" in next(line.how for line in lines if line.name == "prompts per generation round")
    assert value(lines, "sequences per step") == "128"  # what is trained
    assert next(line.how for line in lines if line.name == "memory: KV cache").startswith(f"{48 * 8} sequences")
    assert not [line for line in plan_numbers(finish(KEYS)[0], None, None) if "round" in line.name]


def test_greedy_rows_sample_beside_the_others(finish):
    needs = Needs(greedy_baseline=True)
    keys = KEYS | HF | {f"{ROLLOUT}.n": 1, "algorithm.adv_estimator": "remax"}
    config, _ = finish(keys, needs)
    lines = plan_numbers(config, None, sizes(), needs)
    assert value(lines, "greedy sequences per step") == "16"
    assert estimate_memory(config, sizes(), 2, needs).kv_cache == 2 * estimate_memory(config, sizes(), 2).kv_cache
    assert "32 sequences" in plan_table(config, None, sizes(), needs)
    assert not [line for line in plan_numbers(config, None, sizes()) if "greedy" in line.name]
    config, _ = finish(keys | FILTER | {f"{ROLLOUT}.n": 4, "data.gen_batch_size": 32}, needs)
    assert value(plan_numbers(config, None, None, needs), "greedy sequences per generation round") == "32"
    config.actor_rollout_ref.rollout.max_num_seqs = 100
    assert sequences_at_a_time(config, needs) == 100
    config.actor_rollout_ref.rollout.max_num_seqs = 1000
    assert sequences_at_a_time(config, needs) == 32 * 5


def test_tokens_instead_of_sequences(finish):
    config, _ = finish(KEYS | {f"{ACTOR}.use_dynamic_bsz": True, f"{ACTOR}.ppo_max_token_len_per_gpu": 5000})
    lines = plan_numbers(config, None, None)
    assert value(lines, "micro-batches per mini-batch, at most") == "7"  # 32 × 1024 / 5000, rounded up


def test_memory_counts_what_is_there(finish):
    plain = estimate_memory(finish(KEYS)[0], sizes(), 2)
    assert (plain.weights, plain.masters, plain.moments) == (4_000_000, 0, 8_000_000)
    assert plain.gradients == 4_000_000
    assert plain.reference == plain.critic == 0
    assert plain.kv_cache == (1024 * 1024 + 16) * (2 * 4 * 2 * 32 * 4)  # max_num_seqs at full length, and a block
    assert estimate_memory(finish(KEYS | HF)[0], sizes(), 2).kv_cache == 128 * 1024 * (2 * 4 * 2 * 32 * 4)
    assert plain.peak == plain.always + max(plain.kv_cache, plain.training)
    full = estimate_memory(finish(KEYS | {f"{ACTOR}.use_kl_loss": True}, Needs(critic=True))[0], sizes(), 2)
    assert full.reference == 4_000_000
    assert full.critic == 12_000_000  # its gradients are there when the actor's are not
    assert full.always == plain.always + full.reference + full.critic


def test_the_kv_pool_takes_its_share_of_the_device_at_most(finish):
    config, _ = finish(KEYS | {f"{ROLLOUT}.gpu_memory_utilization": 0.25})
    whole = estimate_memory(config, sizes(), 2).kv_cache
    assert estimate_memory(config, sizes(), 2, memory_bytes=2**28).kv_cache == 2**26 < whole
    assert estimate_memory(config, sizes(), 2, memory_bytes=2**50).kv_cache == whole
    (line,) = [
        line for line in plan_numbers(config, None, sizes(), memory_bytes=2**28) if line.name == "memory: KV pool"
    ]
    said = "rollout.max_num_seqs=1024 sequences of 1024 tokens, at most 0.25 of 256.0 MiB"
    assert (line.value, line.how) == ("64.0 MiB", said)
    short, _ = finish(
        KEYS | {f"{ROLLOUT}.max_num_seqs": 8, "data.max_response_length": 10, "data.max_prompt_length": 7}
    )
    assert estimate_memory(short, sizes(), 2).kv_cache == (8 * 2 + 1) * 16 * (2 * 4 * 2 * 32 * 4)  # blocks of 16


def test_a_kv_pool_that_stays_leaves_less_for_training(finish):
    freed, kept = (finish(KEYS | {f"{ROLLOUT}.free_cache_engine": value})[0] for value in (True, False))
    before, after = (estimate_memory(config, sizes(), 2, memory_bytes=2**30) for config in (freed, kept))
    assert after.always == before.always + before.kv_cache
    assert before.peak == before.always + max(before.kv_cache, before.training)
    assert after.peak == after.always + after.training
    assert plan_micro_batch(kept, sizes(), 2**29) < plan_micro_batch(freed, sizes(), 2**29)
    assert plan_numbers(kept, None, sizes())[-1].how.endswith("plus one training pass")
    assert estimate_memory(finish(KEYS | HF | {f"{ROLLOUT}.free_cache_engine": False})[0], sizes(), 2).keeps_kv is False


def test_models_of_their_own_count_with_their_own_sizes(finish):
    keys = KEYS | {"critic.model.path": "other", "critic.model.dtype": "bf16", "process_reward.model.path": "third"}
    config, _ = finish(keys, Needs(critic=True, process_reward=True))
    own = {"critic.model": Sizes(parameters=3_000_000, layers=9), "process_reward.model": Sizes(5_000_000, vocab=7000)}
    shared, memory = estimate_memory(config, sizes(), 2), estimate_memory(config, sizes() | own, 2)
    assert memory.critic == 3_000_000 * (2 + 4 + 8)
    assert memory.process_reward == 5_000_000 * (4 + 4 + 8)
    assert memory.gradients == 5_000_000 * 4  # the largest of those that take turns
    assert memory.logits == 7 * shared.logits
    assert memory.kv_cache == shared.kv_cache  # of the policy, which alone samples
    deep = estimate_memory(config, sizes() | {"critic.model": Sizes(layers=40)}, 2)
    assert deep.activations > shared.activations == memory.activations  # bf16 takes half of it
    config.critic.enable = False
    assert estimate_memory(config, sizes() | own, 2).critic == 0


def test_a_larger_critic_leaves_room_for_fewer_sequences(finish):
    config, _ = finish(KEYS, Needs(critic=True))
    four = estimate_memory(config, sizes(), 4)
    room = int((four.always + four.training) / 0.9) + 1
    assert plan_micro_batch(config, sizes(), room) == 4
    assert plan_micro_batch(config, sizes() | {"critic.model": Sizes(parameters=5_000_000)}, room) < 4


def test_low_precision_weights_have_float32_masters(finish):
    """Per parameter 2 + 4 + 8 bytes throughout; 4 for the gradients, and 2 for those of one pass."""
    keys = KEYS | {"actor_rollout_ref.model.dtype": "bf16"}
    memory = estimate_memory(finish(keys)[0], sizes(), 2)
    assert (memory.weights, memory.masters, memory.moments) == (2_000_000, 4_000_000, 8_000_000)
    assert memory.gradients == 6_000_000
    float32_critic = estimate_memory(finish(keys, Needs(critic=True))[0], sizes(), 2)
    assert float32_critic.critic == 12_000_000
    both = estimate_memory(finish(keys | {"critic.model.dtype": "bf16"}, Needs(critic=True))[0], sizes(), 2)
    assert both.critic == 14_000_000


def test_logits_are_those_of_response_tokens_and_never_more_than_one_chunk(finish):
    config, _ = finish(KEYS)
    assert estimate_memory(config, sizes(), 2).logits == 2 * 512 * 1000 * 4 * 3
    assert estimate_memory(config, sizes(vocab=150_000), 16).logits == CHUNK_ELEMENTS * 4 * 3
    assert LOGITS_AT_A_TIME == CHUNK_ELEMENTS


def kept_for_backward(module, sequences, tokens):
    """Bytes that a forward pass keeps for its backward pass, besides the weights."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage  # held, so that no two have the same address
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        module.get_decoder()(input_ids=torch.ones(sequences, tokens, dtype=torch.long), use_cache=False)
    return sum(storage.nbytes() for storage in kept.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("checkpointing", [True, False])
def test_activations_grow_with_layers_as_those_of_a_model_do(finish, tmp_path, dtype, checkpointing):
    shape = {"hidden_size": 64, "heads": 4, "intermediate_size": 192}
    keys = {"data.max_prompt_length": 60, "data.max_response_length": 40}
    keys["actor_rollout_ref.model.enable_gradient_checkpointing"] = checkpointing
    keys["actor_rollout_ref.model.dtype"] = str(dtype).removeprefix("torch.")
    config, _ = finish(KEYS | keys)
    measured, estimated = [], []
    for layers in (2, 5):
        folder = write_tiny_model(tmp_path / str(layers), layers=layers, **shape)
        module = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).train()
        if checkpointing:
            module.gradient_checkpointing_enable()
        measured.append(kept_for_backward(module, 2, 100))
        estimated.append(estimate_memory(config, sizes(layers=layers, hidden=64, intermediate=192), 2).activations)
    grown = (estimated[1] - estimated[0]) / (measured[1] - measured[0])
    assert grown == pytest.approx(1, rel=0.1)


def test_checkpointing_keeps_one_hidden_state_per_layer_and_recomputes_one_layer(finish):
    off = finish(KEYS | {"actor_rollout_ref.model.enable_gradient_checkpointing": False})[0]
    layer = estimate_memory(off, sizes(layers=1), 2).activations
    assert estimate_memory(off, sizes(layers=4), 2).activations == 4 * layer
    hidden = 2 * 1024 * 128 * 4
    assert estimate_memory(finish(KEYS)[0], sizes(layers=4), 2).activations == 4 * hidden + layer


def test_micro_batches_fit_the_memory(finish):
    config, _ = finish(KEYS)
    five, six = (estimate_memory(config, sizes(), count) for count in (5, 6))
    assert plan_micro_batch(config, sizes(), int((five.always + five.training) / 0.9) + 1) == 5
    assert plan_micro_batch(config, sizes(), int((six.always + six.training) / 0.9) - 1) == 5
    assert plan_micro_batch(config, sizes(), 1) == 1
    assert plan_micro_batch(config, sizes(), 10**15) == 16  # 16384 tokens are enough for one pass
    small, _ = finish(KEYS | {"data.train_batch_size": 4, f"{ROLLOUT}.n": 2})
    assert plan_micro_batch(small, sizes(), 10**15) == 8  # the whole mini-batch


def test_only_sizes_that_were_left_open_are_planned(finish):
    config, _ = finish(KEYS | {f"{ACTOR}.ppo_micro_batch_size_per_gpu": 3}, Needs(critic=True))
    notices = plan_micro_batches(config, sizes(), 10**15)
    policy, critic = config.actor_rollout_ref, config.critic
    assert policy.actor.ppo_micro_batch_size_per_gpu == 3
    assert policy.rollout.log_prob_micro_batch_size_per_gpu == policy.ref.log_prob_micro_batch_size_per_gpu == 16
    assert critic.ppo_micro_batch_size_per_gpu == critic.forward_micro_batch_size_per_gpu == 16
    (notice,) = notices
    assert notice.startswith("micro-batches of 16 sequences, planned for ")
    told = notice.partition("memory (")[2].removesuffix(")").split(", ")
    assert told == [  # without a KL term there is no reference
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu",
        "critic.ppo_micro_batch_size_per_gpu",
        "critic.forward_micro_batch_size_per_gpu",
    ]
    assert plan_micro_batches(config, sizes(), 10**15) == []


def test_where_all_sizes_are_planned_none_is_named(finish):
    (notice,) = plan_micro_batches(finish(KEYS)[0], sizes(), 2**50)
    assert notice == "micro-batches of 16 sequences, planned for 1048576.0 GiB of memory"


def test_the_table_has_a_line_per_number(finish):
    config, _ = finish(KEYS | {f"{ACTOR}.ppo_micro_batch_size_per_gpu": 1})
    table = plan_table(config, 100, sizes())
    assert len(table.splitlines()) == len(plan_numbers(config, 100, sizes()))
    assert "estimated peak memory" in table.splitlines()[-1]


@pytest.mark.parametrize(
    ("count", "text"), [(512, "512 B"), (2048, "2.0 KiB"), (3 * 2**20, "3.0 MiB"), (GIB, "1.0 GiB")]
)
def test_sizes_in_words(count, text):
    assert gib(count) == text


def test_this_machine_has_memory():
    assert host_memory() > 2**26


def test_the_short_form_shows_what_differs(make, finish):
    built = make({"data.seed": 3, "trainer.total_epochs": 1, "data.train_files": ["a", "b"]})
    assert explain(built.config, built.explicit).splitlines() == ["data.train_files  [a,b]", "data.seed         3"]
    config, _ = finish({"algorithm.kl_ctrl.kl_coef": 0.5})
    text = explain(config, frozenset({"algorithm.kl_ctrl.kl_coef"}))
    assert "algorithm.use_kl_in_reward" in text and "(follows from other keys)" in text
