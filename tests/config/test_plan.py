"""The arithmetic of a run, its memory, and micro-batches that fit."""

from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM

from burnish.config import Needs, explain
from burnish.config.memory import adapter_parameters, estimate_memory, gib, host_memory, rollout_load
from burnish.config.model import ModelConfig
from burnish.config.passes import CHUNK_ELEMENTS as AT_A_TIME
from burnish.config.passes import CHUNK_ROWS, FUSED, PLAIN_ELEMENTS, ModelFacts, activations, passes_of
from burnish.config.plan import plan_activations, plan_micro_batch, plan_micro_batches, plan_numbers, plan_table
from burnish.config.ppo import ACTOR_MODEL
from burnish.engine import forward
from burnish.models import llama
from burnish.models.backbones import FusedBackbone
from burnish.models.tiny import write_tiny_model
from burnish.ops import linear_log_probs
from burnish.ops.varlen_attention import Sequences

GIB = 2**30
ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
CHECKPOINTING = "actor_rollout_ref.model.enable_gradient_checkpointing"
KEYS = {"data.train_batch_size": 16, f"{ACTOR}.ppo_mini_batch_size": 4, f"{ROLLOUT}.n": 8}


def facts_of(parameters=1_000_000, model_type="gemma2", context=4096, **sizes):
    """A model; by default one that has no fused pass."""
    shape = {"layers": 4, "hidden": 128, "intermediate": 512, "vocab": 1000, "heads": 4, "kv_heads": 2, "head_dim": 32}
    return ModelFacts(model_type, context, parameters=parameters, **shape | sizes)


def sizes(**policy):
    return {"actor_rollout_ref.model": facts_of(**policy)}


def value(lines, name):
    (line,) = [line for line in lines if line.name == name]
    return line.value


def hows(lines):
    return {line.name: line.how for line in lines}


def test_batches_and_steps(finish):
    config, _ = finish(KEYS | {f"{ACTOR}.ppo_micro_batch_size_per_gpu": 6, f"{ACTOR}.ppo_epochs": 2})
    lines = plan_numbers(config, rows=100, facts=None)
    names = ("prompts per step", "sequences per step", "tokens per step, at most", "mini-batches per step")
    assert [value(lines, name) for name in names] == ["16", "128", f"{128 * 1024:,}", "4"]
    assert value(lines, "sequences per mini-batch") == "32"
    assert value(lines, "micro-batches per mini-batch") == "6"  # 32 / 6, rounded up
    assert value(lines, "optimiser steps per step") == "8" and value(lines, "steps in total") == "7"  # 100 / 16
    config, _ = finish(KEYS | {"trainer.total_epochs": 3})
    assert value(plan_numbers(config, 100, None), "steps in total") == "19"  # 300 / 16, rounded up
    assert not any(line.name == "steps in total" for line in plan_numbers(config, None, None))
    config.trainer.total_training_steps = 5
    assert value(plan_numbers(config, None, None), "steps in total") == "5"
    config, _ = finish(KEYS | {"critic.ppo_mini_batch_size": 8, "critic.ppo_epochs": 3}, Needs(critic=True))
    assert value(plan_numbers(config, None, None), "critic optimiser steps per step") == "6"
    config, _ = finish(KEYS | {f"{ACTOR}.use_dynamic_bsz": True, f"{ACTOR}.ppo_max_token_len_per_gpu": 5000})
    lines = plan_numbers(config, None, None)
    assert value(lines, "micro-batches per mini-batch, at most") == "7"  # 32 × 1024 / 5000, rounded up


FILTER = {"algorithm.filter_groups.enable": True}
HF = {f"{ROLLOUT}.name": "hf"}  # keeps keys and values of what runs; the native engine has a pool


def test_rounds_of_generation_are_what_samples_together(finish):
    rounds = {"data.gen_batch_size": 48, "algorithm.filter_groups.max_num_gen_batches": 3}
    config, _ = finish(KEYS | FILTER | HF | rounds)
    lines = plan_numbers(config, None, sizes())
    assert value(lines, "prompts per generation round") == "48"
    assert "at most 3" in hows(lines)["prompts per generation round"]
    assert value(lines, "sequences per step") == "128"  # what is trained
    assert hows(lines)["memory: KV cache"].startswith(f"{48 * 8} sequences")
    assert not [line for line in plan_numbers(finish(KEYS)[0], None, None) if "round" in line.name]


def test_greedy_rows_are_sampled_with_the_others(finish):
    needs = Needs(greedy_baseline=True)
    keys = KEYS | HF | {f"{ROLLOUT}.n": 1, "algorithm.adv_estimator": "remax"}
    config, _ = finish(keys, needs)
    lines = plan_numbers(config, None, sizes(), needs)
    assert value(lines, "greedy sequences per step") == "16"
    assert estimate_memory(config, sizes(), 2, needs).kv_cache == 2 * estimate_memory(config, sizes(), 2).kv_cache
    assert "32 sequences" in plan_table(lines)
    assert not [line for line in plan_numbers(config, None, sizes()) if "greedy" in line.name]
    config, _ = finish(keys | FILTER | {f"{ROLLOUT}.n": 4, "data.gen_batch_size": 32}, needs)
    assert value(plan_numbers(config, None, None, needs), "greedy sequences per generation round") == "32"
    for most, sequences in ((100, 100), (1000, 32 * 5)):
        config.actor_rollout_ref.rollout.max_num_seqs = most
        assert rollout_load(config, facts_of(), needs, None, False).sequences == sequences


def test_memory_counts_what_is_there(finish):
    plain = estimate_memory(finish(KEYS)[0], sizes(), 2)
    assert (plain.weights, plain.masters, plain.moments) == (4_000_000, 0, 8_000_000)
    assert plain.most("gradients") == 4_000_000
    assert plain.reference == plain.critic == 0
    assert plain.kv_cache == (1024 * 1024 + 16) * (2 * 4 * 2 * 32 * 4)  # max_num_seqs at full length, and a block
    assert estimate_memory(finish(KEYS | HF)[0], sizes(), 2).kv_cache == 128 * 1024 * (2 * 4 * 2 * 32 * 4)
    assert plain.peak == plain.always + max(plain.kv_cache, plain.training)
    full = estimate_memory(finish(KEYS | {f"{ACTOR}.use_kl_loss": True}, Needs(critic=True))[0], sizes(), 2)
    assert full.reference == 4_000_000
    assert full.critic == 12_000_000  # its gradients are there when the actor's are not
    assert full.always == plain.always + full.reference + full.critic
    keys = KEYS | {"actor_rollout_ref.model.dtype": "bf16"}
    memory = estimate_memory(finish(keys)[0], sizes(), 2)
    assert (memory.weights, memory.masters, memory.moments) == (2_000_000, 4_000_000, 8_000_000)
    assert memory.most("gradients") == 6_000_000
    float32_critic = estimate_memory(finish(keys, Needs(critic=True))[0], sizes(), 2)
    assert float32_critic.critic == 12_000_000
    both = estimate_memory(finish(keys | {"critic.model.dtype": "bf16"}, Needs(critic=True))[0], sizes(), 2)
    assert both.critic == 14_000_000


def test_with_lora_only_the_adapter_has_masters_moments_and_gradients(finish):
    keys = KEYS | {f"{ACTOR}.use_kl_loss": True, "actor_rollout_ref.model.lora_rank": 8, "critic.model.lora_rank": 2}
    config, _ = finish(keys | {"actor_rollout_ref.model.dtype": "bf16"}, Needs(critic=True, process_reward=True))
    per_rank = 4 * (2 * (128 + 128) + 2 * (128 + 64) + 3 * (128 + 512))  # layers × (q and o, k and v, feed-forward)
    memory = estimate_memory(config, sizes(), 2)
    adapter = 8 * per_rank
    assert memory.weights == 2 * (1_000_000 + adapter) and memory.reference == 0
    assert (memory.masters, memory.moments) == (4 * adapter, 8 * adapter)
    assert memory.critic == 4 * 1_000_000 + 2 * per_rank * (4 + 8)
    assert memory.process_reward == 1_000_000 * (4 + 8 + 4), "which is trained whole, and so has a start beside it"
    config.process_reward.enable = False
    assert estimate_memory(config, sizes(), 2).most("gradients") == (4 + 2) * adapter
    lines = hows(plan_numbers(config, None, sizes()))
    assert lines["memory: weights"] == f"1,000,000 parameters and {adapter:,} of the adapter in bfloat16"
    assert "the adapter in float32" in lines["memory: masters"] and "memory: reference" not in lines


def test_adapters_of_some_layers_are_smaller_and_need_no_start(finish):
    config, _ = finish(KEYS | {"actor_rollout_ref.model.lora_rank": 2})
    model, facts = config.actor_rollout_ref.model, facts_of()
    model.target_modules = ["q_proj", "self_attn.v_proj"]
    assert adapter_parameters(model, facts) == 2 * 4 * ((128 + 128) + (128 + 64))
    model.exclude_modules = ["v_proj"]
    assert adapter_parameters(model, facts) == 2 * 4 * (128 + 128)
    model.lora_rank = 0
    assert adapter_parameters(model, facts) == 0

    def words(**keys):
        config, _ = finish(KEYS | keys, Needs(process_reward=True))
        lines = hows(plan_numbers(config, None, sizes()))
        return lines["memory: process reward model"]

    assert words().endswith("moments, and its start")
    assert words(**{"process_reward.model.lora_rank": 4}).endswith("moments")


def test_the_kv_pool_takes_its_share_of_the_device_at_most(finish):
    config, _ = finish(KEYS | {f"{ROLLOUT}.gpu_memory_utilization": 0.25})
    whole = estimate_memory(config, sizes(), 2).kv_cache
    assert estimate_memory(config, sizes(), 2, memory_bytes=2**28).kv_cache == 2**26 < whole
    assert estimate_memory(config, sizes(), 2, memory_bytes=2**50).kv_cache == whole
    lines = plan_numbers(config, None, sizes(), memory_bytes=2**28)
    said = "rollout.max_num_seqs=1024 sequences of 1024 tokens, at most 0.25 of 256.0 MiB"
    assert value(lines, "memory: KV pool") == "64.0 MiB" and hows(lines)["memory: KV pool"] == said
    tight = {f"{ROLLOUT}.max_num_seqs": 8, "data.max_response_length": 10, "data.max_prompt_length": 7}
    short, _ = finish(KEYS | tight)
    assert estimate_memory(short, sizes(), 2).kv_cache == (8 * 2 + 1) * 16 * (2 * 4 * 2 * 32 * 4)  # blocks of 16
    freed, kept = (finish(KEYS | {f"{ROLLOUT}.free_cache_engine": value})[0] for value in (True, False))
    before, after = (estimate_memory(config, sizes(), 2, memory_bytes=2**30) for config in (freed, kept))
    assert after.always == before.always + before.kv_cache
    assert before.peak == before.always + max(before.kv_cache, before.training)
    assert after.peak == after.always + after.training
    assert plan_micro_batch(kept, sizes(), 2**29) < plan_micro_batch(freed, sizes(), 2**29)
    assert plan_numbers(kept, None, sizes())[-1].how.endswith("plus one training pass")
    assert estimate_memory(finish(KEYS | HF | {f"{ROLLOUT}.free_cache_engine": False})[0], sizes(), 2).keeps_kv is False


def test_a_program_takes_its_share_of_a_gpu_and_frees_nothing_on_a_cpu(finish):
    keys = KEYS | {f"{ROLLOUT}.gpu_memory_utilization": 0.25}
    freed, kept = (finish(keys | {f"{ROLLOUT}.free_cache_engine": value})[0] for value in (True, False))
    for config in (freed, kept):
        config.actor_rollout_ref.rollout.name = "vllm"  # as a key it needs vLLM to be there
    before, after = (estimate_memory(c, sizes(), 2, memory_bytes=2**30, on_gpu=True) for c in (freed, kept))
    assert before.kv_cache == after.kv_cache == 2**28 and before.replica == 0
    assert (before.keeps_kv, after.keeps_kv) == (False, True)
    assert estimate_memory(freed, sizes(), 2, memory_bytes=2**30).keeps_kv
    names = hows(plan_numbers(freed, None, sizes()))
    said = "weights, keys and values of vllm's own processes, and the files that its weights come by, also while it"
    assert names["memory: rollout engine"].startswith(said)
    names = hows(plan_numbers(freed, None, sizes(), memory_bytes=2**30))
    assert names["memory: rollout engine"] == "weights, keys and values of vllm's own processes"


def test_a_program_on_a_cpu_has_its_weights_twice_and_a_pool_by_its_own_rule(finish):
    keys = KEYS | {f"{ROLLOUT}.max_num_seqs": 8}
    weights, token = sizes()["actor_rollout_ref.model"].parameters * 4, 2 * 4 * 2 * 32 * 4

    def engine(name, **more):
        config, _ = finish(keys | {f"{ROLLOUT}.{key}": value for key, value in more.items() if key != "workers"})
        config.actor_rollout_ref.rollout.name = name  # as a key it needs the program to be there
        config.actor_rollout_ref.rollout.tensor_model_parallel_size = more.get("workers", 1)
        return config

    def memory(*args, **more):
        return estimate_memory(engine(*args, **more), sizes(), 2).kv_cache

    assert memory("vllm") == 2 * weights + 2**30
    assert memory("vllm", max_num_seqs=200) == 2 * weights + 2 * 2**30  # 200 × (4096 + 256) tokens, in whole GiB
    assert memory("vllm", max_num_seqs=10**4) == 2 * weights + 4 * 2**30
    assert memory("vllm", workers=2) == 2 * weights + 2 * 2**30, "both are on this machine"
    assert memory("sglang") == 2 * weights + 8 * (4096 + 16) * token
    assert memory("sglang", max_model_len=2048) == 2 * weights + 8 * (2048 + 16) * token
    assert memory("sglang", dtype="bfloat16") == weights + 8 * (4096 + 16) * token // 2
    several = engine("vllm", workers=2)
    several.trainer.executor, several.trainer.n_gpus_per_node = "ray", 2
    assert estimate_memory(several, sizes(), 2).kv_cache == weights + 2**30, "two processes share the two workers"


def test_models_of_their_own_count_with_their_own_sizes(finish):
    keys = KEYS | {"critic.model.path": "other", "critic.model.dtype": "bf16", "process_reward.model.path": "third"}
    config, _ = finish(keys, Needs(critic=True, process_reward=True))
    own = {"critic.model": facts_of(3_000_000, layers=9), "process_reward.model": facts_of(5_000_000, vocab=7000)}
    shared, memory = estimate_memory(config, sizes(), 2), estimate_memory(config, sizes() | own, 2)
    assert memory.critic == 3_000_000 * (2 + 4 + 8)
    assert memory.process_reward == 5_000_000 * (4 + 4 + 8)
    assert memory.most("gradients") == 5_000_000 * 4  # the largest of those that take turns
    assert memory.most("logits") == 256 * 7000 * 4 + 7000 * 128 * 4 > shared.most("logits")
    assert memory.kv_cache == shared.kv_cache  # of the policy, which alone samples
    one_number = estimate_memory(config, sizes() | {"critic.model": facts_of(vocab=10**6)}, 2)
    assert one_number.most("logits") == shared.most("logits")
    deep = estimate_memory(config, sizes() | {"critic.model": facts_of(layers=40)}, 2)
    assert deep.most("activations") > shared.most("activations") == memory.most("activations")  # bf16 takes half of it
    config.critic.enable = False
    assert estimate_memory(config, sizes() | own, 2).critic == 0


def test_logits_are_those_of_a_chunk_with_their_gradients(finish):
    """On a CPU 256 tokens at least, or 2**20 logits; on a GPU 2**28. The weight's gradient is summed in float32."""
    config, _ = finish(KEYS)
    assert estimate_memory(config, sizes(), 2).most("logits") == 2**20 // 1000 * 1000 * 4 + 1000 * 128 * 4
    assert estimate_memory(config, sizes(vocab=50_000), 2).most("logits") == 256 * 50_000 * 4 + 50_000 * 128 * 4
    assert estimate_memory(config, sizes(vocab=50_000), 2, on_gpu=True).most("logits") == (2 * 1024 + 128) * 50_000 * 4
    most = 2**28 // 50_000
    low, _ = finish(KEYS | {"actor_rollout_ref.model.dtype": "bf16"})
    per_word = most * (4 + 2) + 128 * 4
    assert estimate_memory(low, sizes(vocab=50_000), 16, on_gpu=True).most("logits") == 50_000 * per_word
    adapter, _ = finish(KEYS | {"actor_rollout_ref.model.lora_rank": 4})
    assert estimate_memory(adapter, sizes(vocab=50_000), 16, on_gpu=True).most("logits") == 50_000 * most * 4, "frozen"
    plain, _ = finish(KEYS | {"actor_rollout_ref.model.use_fused_kernels": False})
    assert estimate_memory(plain, sizes(), 2).most("logits") == 2 * 1024 * 1000 * 4 * 3
    assert estimate_memory(plain, sizes(vocab=150_000), 16).most("logits") == 2**25 * 4 * 3


def test_chunks_and_fused_families_are_those_of_the_engine():
    chunks = linear_log_probs.CHUNK_ELEMENTS
    assert (AT_A_TIME[False], AT_A_TIME[True]) == (chunks["cpu"], chunks["cuda"])
    assert (CHUNK_ROWS, PLAIN_ELEMENTS) == (linear_log_probs.CHUNK_ROWS, forward.CHUNK_ELEMENTS)
    from transformers import CONFIG_MAPPING, MODEL_MAPPING

    assert tuple(MODEL_MAPPING[CONFIG_MAPPING[name]].__name__ for name in FUSED) == llama.BACKBONES


def kept_for_backward(module, run):
    """Bytes that `run`, a forward pass, keeps for its backward pass, besides the weights."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage  # held, so that no two have the same address
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        run()
    return sum(storage.nbytes() for storage in kept.values())


def growth(folder, run, *, dtype, checkpointing, device="cpu"):
    """Bytes that a layer more keeps for the backward pass; `run(module)` gives the forward pass."""
    measured = []
    for layers in (2, 5):
        source = write_tiny_model(folder / str(layers), layers=layers, hidden_size=64, heads=4, intermediate_size=192)
        module = AutoModelForCausalLM.from_pretrained(source, dtype=dtype).train().to(device)
        if checkpointing:
            module.gradient_checkpointing_enable({"use_reentrant": False})
        measured.append(kept_for_backward(module, run(module)))
    return (measured[1] - measured[0]) / 3


def by_fused_pass(module):
    device, backbone = module.device, FusedBackbone(module.model)
    ids, positions = torch.ones(200, dtype=torch.long, device=device), torch.arange(100, device=device).repeat(2)
    return lambda: backbone(ids, positions, Sequences.of([100, 100], device))


def estimated(model_type, dtype, checkpointing, on_gpu=False):
    """Bytes that a layer more takes by the estimate, in a pass of 200 tokens through a model of that shape."""
    model = ModelConfig(dtype=str(dtype).removeprefix("torch."), enable_gradient_checkpointing=checkpointing)
    shape = {"hidden": 64, "intermediate": 192, "kv_heads": 4, "head_dim": 16, "model_type": model_type}
    two, five = (
        activations(model, facts_of(layers=layers, **shape), 200, trains=True, on_gpu=on_gpu) for layers in (2, 5)
    )
    return (five - two) / 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("checkpointing", [True, False])
def test_activations_grow_with_layers_as_those_of_a_model_and_of_the_fused_pass_do(tmp_path, dtype, checkpointing):
    """On a CPU torch's own functions keep more than the kernels of the fused pass do; a checkpoint is of two parts."""
    measured = {"dtype": dtype, "checkpointing": checkpointing}
    ids = torch.ones(2, 100, dtype=torch.long)
    by_transformers = lambda module: lambda: module.get_decoder()(input_ids=ids, use_cache=False)  # noqa: E731
    grown = growth(tmp_path, by_transformers, **measured)
    assert estimated("gemma2", dtype, checkpointing) == pytest.approx(grown, rel=0.1)
    grown = growth(tmp_path, by_fused_pass, **measured)
    assert estimated("qwen2", dtype, checkpointing) == pytest.approx(grown, rel=1e-9 if checkpointing else 0.15)


@pytest.mark.gpu
@pytest.mark.parametrize("checkpointing", [True, False])
def test_activations_grow_with_layers_as_those_of_the_kernels_do(tmp_path, checkpointing):
    measured = {"dtype": torch.bfloat16, "checkpointing": checkpointing, "device": "cuda"}
    grown = growth(tmp_path, by_fused_pass, **measured)
    assert estimated("qwen2", torch.bfloat16, checkpointing, on_gpu=True) == pytest.approx(grown, rel=0.05)


HALF = ModelFacts("qwen2", 4096, 24, 896, 14, 2, 64, 4864, 151_936, 494_032_768)


@pytest.mark.parametrize(
    ("facts", "tokens", "checkpointing", "measured"),  # GiB at the peak, of bf16 on an H200: weights and gradients, too
    [(HALF, 18_944, False, 18.6), (HALF, 63_936, False, 60.4), (HALF, 63_936, True, 9.9),
     (ModelFacts("qwen2", 4096, 28, 1536, 12, 2, 128, 8960, 151_936, 1_543_714_304), 16_576, False, 35.4)],
)  # fmt: skip
def test_the_fused_pass_takes_what_was_measured(facts, tokens, checkpointing, measured):
    model = ModelConfig(dtype="bfloat16", enable_gradient_checkpointing=checkpointing)
    found = activations(model, facts, tokens, trains=True, on_gpu=True) + 2 * 2 * facts.parameters
    assert found / GIB == pytest.approx(measured, rel=0.06)


def test_only_what_takes_the_fused_pass_counts_as_fused():
    def kept(facts=HALF, *, on_gpu=True, trains=True, **keys):
        model = ModelConfig(dtype="bfloat16", enable_gradient_checkpointing=False, **keys)
        return activations(model, facts, 1000, trains=trains, on_gpu=on_gpu)

    plain = 1000 * 2 * 24 * (11 * 896 + 4 * 4864)
    assert kept() < 0.75 * plain
    assert kept(use_fused_kernels=False) == kept(use_remove_padding=False) == kept(on_gpu=False) == plain
    assert kept(replace(HALF, model_type="gemma2")) == plain
    norms = kept(replace(HALF, model_type="qwen3")) - kept()
    assert norms == 1000 * 2 * 24 * (14 + 2) * 64, "queries and keys before their norms"
    assert kept(trains=False) == kept() / 24, "one layer at a time"
    assert kept(enable_activation_offload=True) == kept() / 24 * 2
    assert kept(enable_activation_offload=True, on_gpu=False) == plain, "on a CPU nothing is moved"


def test_checkpointing_keeps_one_hidden_state_per_layer_and_recomputes_one_layer(finish):
    off = finish(KEYS | {CHECKPOINTING: False})[0]
    layer = estimate_memory(off, sizes(layers=1), 2).most("activations")
    assert estimate_memory(off, sizes(layers=4), 2).most("activations") == 4 * layer
    hidden = 2 * 1024 * 128 * 4
    for value in (True, "auto"):  # which is on where nobody has decided
        on = finish(KEYS | {CHECKPOINTING: value})[0]
        assert estimate_memory(on, sizes(layers=4), 2).most("activations") == 4 * hidden + layer


def test_micro_batches_fit_the_memory(finish):
    config, _ = finish(KEYS)
    five, six = (estimate_memory(config, sizes(), count) for count in (5, 6))
    assert plan_micro_batch(config, sizes(), int((five.always + five.training) / 0.9) + 1) == 5
    assert plan_micro_batch(config, sizes(), int((six.always + six.training) / 0.9) - 1) == 5
    assert plan_micro_batch(config, sizes(), 1) == 1
    assert plan_micro_batch(config, sizes(), 10**15) == 16  # 16384 tokens are enough for one pass
    small, _ = finish(KEYS | {"data.train_batch_size": 4, f"{ROLLOUT}.n": 2})
    assert plan_micro_batch(small, sizes(), 10**15) == 8  # the whole mini-batch
    config, _ = finish(KEYS, Needs(critic=True))
    four = estimate_memory(config, sizes(), 4)
    room = int((four.always + four.training) / 0.9) + 1
    assert plan_micro_batch(config, sizes(), room) == 4
    assert plan_micro_batch(config, sizes() | {"critic.model": facts_of(parameters=5_000_000)}, room) < 4


def test_only_sizes_that_were_left_open_are_planned(finish):
    config, _ = finish(KEYS | {f"{ACTOR}.ppo_micro_batch_size_per_gpu": 3}, Needs(critic=True))
    notices = plan_micro_batches(config, sizes(), 10**15)
    policy, critic = config.actor_rollout_ref, config.critic
    assert policy.actor.ppo_micro_batch_size_per_gpu == 3
    assert policy.rollout.log_prob_micro_batch_size_per_gpu == policy.ref.log_prob_micro_batch_size_per_gpu == 16
    assert critic.ppo_micro_batch_size_per_gpu == critic.forward_micro_batch_size_per_gpu == 16
    kept, notice = notices
    assert kept.startswith("activations are kept, ") and notice.startswith("micro-batches of 16 sequences, planned for")
    planned = (f"{ROLLOUT}.log_prob_", "critic.ppo_", "critic.forward_")  # without a KL term there is no reference
    said = ", ".join(f"{one}micro_batch_size_per_gpu" for one in planned)
    assert notice.endswith(f"memory ({said})")
    assert plan_micro_batches(config, sizes(), 10**15) == []
    (notice,) = plan_micro_batches(finish(KEYS | {CHECKPOINTING: True})[0], sizes(), 2**50)
    assert notice == "micro-batches of 16 sequences, planned for 1048576.0 GiB of memory"


@pytest.mark.parametrize("fits", [True, False])
def test_activations_are_kept_where_they_fit_and_else_recomputed(finish, fits):
    kept, _ = finish(KEYS | {CHECKPOINTING: False})
    memory = estimate_memory(kept, sizes(), 16, on_gpu=True)
    room = int((memory.always + memory.training) / 0.9) + (2 if fits else -2)
    config, _ = finish(KEYS)
    said = plan_micro_batches(config, sizes(), room)
    assert config.actor_rollout_ref.model.enable_gradient_checkpointing is not fits
    assert config.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu == 16
    needed, kept = gib(memory.always + memory.training), gib(memory.most("activations"))
    how = f"kept, {kept}" if fits else f"recomputed: to keep them would take {needed} in all,"
    assert said[0] == f"activations are {how} of {gib(room)} of memory"
    assert plan_micro_batches(config, sizes(), room) == []
    lines = hows(plan_numbers(config, None, sizes(), memory_bytes=room))
    how = "kept for the backward pass" if fits else "recomputed, all but the inputs of layers"
    assert lines["memory: activations"] == f"16 sequences of 1024 tokens, {how}"
    tight, _ = finish(KEYS)
    plan_micro_batches(tight, sizes(), room // 4)
    assert tight.actor_rollout_ref.model.enable_gradient_checkpointing is True
    assert 1 < tight.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu < 16, "planned again with what is recomputed"


def test_checkpointing_that_was_set_or_follows_from_an_offload(finish):
    for value in (True, False):
        for memory in (2**20, 2**50):
            config, _ = finish(KEYS | {CHECKPOINTING: value})
            assert not [said for said in plan_micro_batches(config, sizes(), memory) if "activations" in said]
            assert config.actor_rollout_ref.model.enable_gradient_checkpointing is value
    keys = KEYS | {"actor_rollout_ref.model.enable_activation_offload": True}
    config, _ = finish(keys)
    said = plan_micro_batches(config, sizes(), 2**50)[0]
    assert said.startswith("activations are recomputed: to host memory")
    assert config.actor_rollout_ref.model.enable_gradient_checkpointing is True
    on_cpu, _ = finish(keys)
    plan_micro_batches(on_cpu, {ACTOR_MODEL: facts_of(parameters=1, vocab=2, layers=1, hidden=1, intermediate=1)})
    assert on_cpu.actor_rollout_ref.model.enable_gradient_checkpointing is False, "a CPU moves nothing"


def test_one_decision_holds_for_all_models_that_are_trained(finish):
    needs = Needs(critic=True, process_reward=True)
    judge = {"reward_model.enable": True, "reward_model.model.path": "rm"}
    config, _ = finish(KEYS | judge | {"critic.model.enable_gradient_checkpointing": True}, needs)
    said = plan_micro_batches(config, sizes(), 2**50)[0]
    assert said.endswith(" of memory (actor_rollout_ref.model, process_reward.model)")
    found = {key: model.enable_gradient_checkpointing for key, model in config.models.items()}
    assert found == {"actor_rollout_ref.model": False, "critic.model": True, "process_reward.model": False,
                     "reward_model.model": "auto"}  # fmt: skip
    config, _ = finish(KEYS, needs)
    large = {"critic.model": facts_of(layers=4000)}
    said = plan_micro_batches(config, sizes() | large, 2**36)[0]
    assert said.startswith("activations are recomputed") and said.endswith("memory"), "all of them, so none is named"
    assert all(model.enable_gradient_checkpointing is True for model in config.models.values())


def test_a_budget_of_tokens_decides_where_passes_are_cut_by_it(finish):
    def planned(budget):
        keys = {f"{ACTOR}.use_dynamic_bsz": True, f"{ACTOR}.ppo_max_token_len_per_gpu": budget}
        config, _ = finish(KEYS | keys)
        return config, plan_micro_batches(config, sizes(), 2**29)

    small, said = planned(2000)
    assert small.actor_rollout_ref.model.enable_gradient_checkpointing is False and len(said) == 1
    lines = hows(plan_numbers(small, None, sizes(), memory_bytes=2**29))
    assert lines["memory: activations"] == "2,000 tokens, kept for the backward pass"
    large, said = planned(30_000)
    assert large.actor_rollout_ref.model.enable_gradient_checkpointing is True
    lines = hows(plan_numbers(large, None, sizes(), memory_bytes=2**29))
    assert lines["memory: activations"].startswith("30,000 tokens, recomputed")


def test_a_pass_has_its_own_tokens(finish):
    def tokens(micro_batch=None, **keys):
        config, _ = finish(KEYS | {"critic.ppo_mini_batch_size": 1} | keys, Needs(critic=True))
        return {one.size.removesuffix("micro_batch_size_per_gpu"): one.tokens(config, micro_batch)
                for one in passes_of(config) if one.is_used}  # fmt: skip

    sized = tokens(**{f"{ACTOR}.ppo_micro_batch_size_per_gpu": 3, f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": 5})
    assert sized == {f"{ACTOR}.ppo_": 3 * 1024, f"{ROLLOUT}.log_prob_": 5 * 1024, "critic.ppo_": 1024,
                     "critic.forward_": 1024}  # fmt: skip
    assert set(tokens(2).values()) == {2048}
    cut = {f"{ACTOR}.use_dynamic_bsz": True, f"{ACTOR}.ppo_max_token_len_per_gpu": 20_000}
    budgets = tokens(7, **cut, **{"critic.forward_max_token_len_per_gpu": 50_000})
    assert budgets == {f"{ACTOR}.ppo_": 20_000, f"{ROLLOUT}.log_prob_": 20_000, "critic.ppo_": 8 * 1024,
                       "critic.forward_": 50_000}, "no more than the sequences of an update"  # fmt: skip
    assert tokens(**cut | {f"{ACTOR}.ppo_max_token_len_per_gpu": 10})[f"{ACTOR}.ppo_"] == 1024, "a sequence is whole"


def test_update_state_in_host_memory_is_there_for_the_update_alone(finish):
    keys = KEYS | {"actor_rollout_ref.model.dtype": "bf16"}
    offload = {f"{ACTOR}.fsdp_config.optimizer_offload": True, "critic.fsdp_config.optimizer_offload": True}
    needs = Needs(critic=True)
    before = estimate_memory(finish(keys, needs)[0], sizes(), 2, on_gpu=True)
    config, _ = finish(keys | offload, needs)
    after = estimate_memory(config, sizes(), 2, on_gpu=True)
    assert (after.weights, after.masters, after.moments, after.critic) == (before.weights, 0, 0, 4_000_000)
    assert after.always == before.always - (4_000_000 + 8_000_000) - 8_000_000
    large = estimate_memory(config, sizes(parameters=10**9), 2, on_gpu=True)
    assert large.largest.name == "the optimiser's step" and large.training == 10**9 * (4 + 8 + 4)
    assert large.peak == large.always + 10**9 * (4 + 8 + 4), "gradients, and what comes back; no activations"
    lines = {line.name: line.value for line in plan_numbers(config, None, sizes(parameters=10**9), memory_bytes=2**60)}
    assert lines["memory: from host memory"] == gib(12 * 10**9) and "memory: masters" not in lines
    assert estimate_memory(config, sizes(), 2) == estimate_memory(finish(keys, needs)[0], sizes(), 2), "on a CPU"


def test_weights_in_host_memory_are_there_while_their_model_is_used(finish):
    judge = {"reward_model.enable": True, "reward_model.model.path": "rm"}
    keys = KEYS | HF | judge | {f"{ACTOR}.use_kl_loss": True, f"{ROLLOUT}.max_num_seqs": 1}
    models = ("actor_rollout_ref.ref", "critic", "reward_model.model")
    offload = {f"{model}.fsdp_config.param_offload": True for model in models}
    facts = sizes() | {"critic.model": facts_of(2_000_000), "reward_model.model": facts_of(10**9)}
    before = estimate_memory(finish(keys, Needs(critic=True))[0], facts, 2, on_gpu=True)
    config, _ = finish(keys | offload, Needs(critic=True))
    after = estimate_memory(config, facts, 2, on_gpu=True)
    assert (after.reference, after.critic, after.reward_model) == (0, 16_000_000, 0), "the critic's moments stay"
    assert after.always == before.always - 4 * (1_000_000 + 2_000_000 + 10**9)
    turns = {turn.name: turn.brought for turn in after.turns}
    assert turns["one pass of the reference"] == 4_000_000 and turns["one pass of the reward model"] == 4 * 10**9
    assert turns["one training pass of the critic"] == turns["one pass of the critic"] == 8_000_000
    assert turns["the optimiser's step of the critic"] == 8_000_000 and turns["one training pass"] == 0
    assert {turn.gradients for turn in after.turns if turn.name.startswith("one pass of")} == {0}
    assert after.largest.name == "one pass of the reward model" and after.peak < before.peak
    assert estimate_memory(config, facts, 2).always == before.always, "on a CPU"


def test_a_run_with_one_model_decides_in_the_same_way():
    facts = facts_of()
    model = ModelConfig(dtype="bfloat16", enable_gradient_checkpointing=False)
    kept = activations(model, facts, 5000, trains=True, on_gpu=True)
    output = 5000 * 1000 * (4 + 2) + 1000 * 128 * 4
    needed = 1_000_000 * (2 + 4 + 8 + 4 + 2) + kept + output
    for room, recomputed in ((int(needed / 0.9) + 2, False), (int(needed / 0.9) - 2, True)):
        model = ModelConfig(dtype="bfloat16")
        (said,) = plan_activations(model, facts, 5000, room)
        assert model.enable_gradient_checkpointing is recomputed
        assert said.startswith("activations are recomputed: " if recomputed else f"activations are kept, {gib(kept)}")
        assert plan_activations(model, facts, 5000, 1) == [] and model.enable_gradient_checkpointing is recomputed


def test_the_table_has_a_line_per_number_and_sizes_in_words(finish):
    config, _ = finish(KEYS | {f"{ACTOR}.ppo_micro_batch_size_per_gpu": 1})
    lines = plan_numbers(config, 100, sizes())
    table = plan_table(lines)
    assert len(table.splitlines()) == len(lines)
    assert "estimated peak memory" in table.splitlines()[-1]
    counts = {512: "512 B", 2048: "2.0 KiB", 3 * 2**20: "3.0 MiB", GIB: "1.0 GiB"}
    assert {count: gib(count) for count in counts} == counts
    assert host_memory() > 2**26, "this machine has memory"


def test_the_short_form_shows_what_differs_but_not_what_was_planned(make, finish):
    built = make({"data.seed": 3, "trainer.total_epochs": 1, "data.train_files": ["a", "b"]})
    assert explain(built.config, built.explicit).splitlines() == ["data.train_files  [a,b]", "data.seed         3"]
    config, _ = finish({"algorithm.kl_ctrl.kl_coef": 0.5})
    text = explain(config, frozenset({"algorithm.kl_ctrl.kl_coef"}))
    assert "algorithm.use_kl_in_reward" in text and "(follows from other keys)" in text
    built = make({"data.seed": 3})
    built.config.actor_rollout_ref.model.enable_gradient_checkpointing = False
    assert explain(built.config, built.explicit) == "data.seed  3"
    assert CHECKPOINTING in explain(built.config, built.explicit | {CHECKPOINTING})
