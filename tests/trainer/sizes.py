"""The table of docs/sizes.md: which models train on which GPUs, by what `--plan --gpu-memory …` of `burnish ppo` and
`burnish sft` counts.

python -m tests.trainer.sizes    writes it again
"""

import json
import re
import tempfile
from pathlib import Path
from typing import Any

from burnish.algorithms.needs import needs_of
from burnish.config.aliases import ALIASES
from burnish.config.build import build
from burnish.config.command import Flags
from burnish.config.fit import largest_memory, needed
from burnish.config.memory import memory_of_one, rollout_load
from burnish.config.model import ModelConfig
from burnish.config.passes import is_recomputed, longest
from burnish.config.plan import USABLE, plan_activations
from burnish.config.ppo import ACTOR_MODEL, PPOConfig
from burnish.data.files import write_parquet
from burnish.data.tasks import arithmetic
from burnish.models.facts import read_model_facts
from burnish.trainer import setup
from tests.benchmarks.conftest import load
from tests.config.conftest import nested

PAGE = Path(__file__).parents[2] / "docs" / "sizes.md"
PLANS = re.compile(r"(<!-- plans.*? -->\n\n)(.*?)(\n\n<!-- end of plans -->)", re.DOTALL)
MODELS = {
    "SmolLM2-135M": "smollm2-135m", "Qwen2.5-0.5B": "qwen2.5-0.5b", "Qwen2.5-1.5B": "qwen2.5-1.5b",
    "Qwen2.5-3B": "qwen2.5-3b", "Qwen2.5-7B": "qwen2.5-7b", "Qwen2.5-14B": "qwen2.5-14b", "Qwen2.5-32B": "qwen2.5-32b",
}  # fmt: skip
SIZES = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size",
    "tie_word_embeddings",
)  # fmt: skip
GPUS, COUNTS = (24, 48, 80, 140), (1, 2, 4, 8)  # GiB
RANK, SFT_LENGTH, SFT_PASSES = 32, 2048, (8, 4, 2, 1)
JOB = {
    "data.max_prompt_length": 512, "data.max_response_length": 1024, "data.train_batch_size": 64,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 64, "actor_rollout_ref.rollout.n": 8,
}  # fmt: skip
GRPO, PPO = {"algorithm.adv_estimator": "grpo"}, {"algorithm.adv_estimator": "gae"}
METHODS = (GRPO, GRPO | {"actor_rollout_ref.model.lora_rank": RANK}, PPO)


def table() -> str:
    columns = ("model", "GiB", "GRPO", "GRPO, LoRA", "PPO", "SFT", "SFT, LoRA")
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    with tempfile.TemporaryDirectory() as folder:
        rows = write_parquet(arithmetic.rows("train", JOB["data.train_batch_size"]), Path(folder) / "train.parquet")
        for name, shape in MODELS.items():
            model = write_shape(Path(folder) / shape, shape)
            job = JOB | {"data.train_files": [str(rows)], "actor_rollout_ref.model.path": str(model)}
            for gpu in GPUS:
                cells = [*(smallest(job | method, gpu) for method in METHODS)]
                cells += [supervised(model, gpu, rank) for rank in (0, RANK)]
                lines.append(f"| {' | '.join([name * (gpu == GPUS[0]), str(gpu), *cells])} |")
    return "\n".join(lines)


def write_shape(folder: Path, shape: str) -> Path:
    """A config.json, which is all that a plan reads of a model."""
    folder.mkdir()
    sizes = dict(zip(SIZES, load("step").SHAPES[shape], strict=True))
    (folder / "config.json").write_text(json.dumps(sizes | {"model_type": "qwen2"}))
    return folder


def smallest(job: dict[str, Any], gpu: int) -> str:
    """The smallest number of GPUs that train this, and, if that takes offload, the smallest that do without."""
    found = []
    for count in COUNTS:
        keys = job | {"trainer.n_gpus_per_node": count}
        if plan := planned(keys, gpu):
            return "; ".join([*found, f"{count}: {plan}"])
        if not found and (plan := planned(keys | offload(keys), gpu)):
            found.append(f"{count}: {plan} o")
    return "; ".join(found) or "-"


def offload(keys: dict[str, Any]) -> dict[str, bool]:
    """What can be in host memory: the policy's weights only where the rollout engine has a copy."""
    names = ["actor_rollout_ref.actor.fsdp_config.optimizer_offload"]
    names += ["actor_rollout_ref.actor.fsdp_config.param_offload"] * (keys["trainer.n_gpus_per_node"] > 1)
    if keys["algorithm.adv_estimator"] == "gae":
        names += ["critic.fsdp_config.optimizer_offload", "critic.fsdp_config.param_offload"]
    return dict.fromkeys(names, True)


def planned(keys: dict[str, Any], gpu: int) -> str:
    """The size of passes, whether activations are recomputed, and how many responses are generated at a time where
    memory limits them; empty where it does not fit."""
    loaded = build(nested(keys), PPOConfig, ALIASES)
    loaded.flags = Flags(plan=True, gpu_memory=gpu * 2**30)
    _, facts = setup.prepare(loaded)
    config, room, needs = loaded.config, gpu * 2**30, needs_of(loaded.config)
    memory, usable = largest_memory(config, facts, needs, room), int(room * USABLE)
    asked = rollout_load(config, facts[ACTOR_MODEL], needs, room, on_gpu=True)
    at_a_time = min(memory.kv_cache, usable - memory.always) // (longest(config) * asked.token_bytes)
    if needed(memory) > usable or at_a_time < 1:
        return ""
    policy = config.actor_rollout_ref
    size = f"{policy.actor.ppo_micro_batch_size_per_gpu}{' r' * is_recomputed(policy.model)}"
    return size + (f" ({at_a_time})" if at_a_time < asked.sequences else "")


def supervised(model: Path, gpu: int, rank: int) -> str:
    """The largest passes of SFT that fit on one GPU."""
    facts, room = read_model_facts(model), gpu * 2**30
    for size in SFT_PASSES:
        config = ModelConfig(path=str(model), dtype="bfloat16", lora_rank=rank)
        plan_activations(config, facts, size * SFT_LENGTH, room)
        if memory_of_one(config, facts, size * SFT_LENGTH, on_gpu=True).peak <= room * USABLE:
            return f"1: {size}{' r' * is_recomputed(config)}"
    return "-"


if __name__ == "__main__":
    PAGE.write_text(PLANS.sub(lambda found: f"{found[1]}{table()}{found[3]}", PAGE.read_text()))
