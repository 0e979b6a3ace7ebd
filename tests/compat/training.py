"""`trained(folder, *overrides)`: two steps of GRPO in this process on the embedded model; the metrics of each step."""

import json
from pathlib import Path

from burnish.cli.quickstart import NANO
from burnish.config.load import load_ppo
from burnish.data.files import write_parquet
from burnish.data.tasks import arithmetic
from burnish.trainer import setup

CLOCKS = ("timing_s/", "timing_per_token_ms/", "perf/")


def trained(folder: Path, *overrides: str) -> list[dict[str, float]]:
    write_parquet(arithmetic.rows("train", 8, seed=0), folder / "train.parquet")
    keys = [
        "algorithm.adv_estimator=grpo",
        f"data.train_files={folder}/train.parquet",
        "data.train_batch_size=4",
        "data.max_prompt_length=32",
        "data.max_response_length=32",
        f"actor_rollout_ref.model.path={NANO}",
        "actor_rollout_ref.rollout.n=4",
        "actor_rollout_ref.actor.ppo_mini_batch_size=4",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=5",
        "actor_rollout_ref.actor.ppo_epochs=2",
        "actor_rollout_ref.actor.optim.lr=1e-4",
        f"custom_reward_function.path={Path(__file__).parent}/user_files/reward.py",
        "custom_reward_function.name=letters",
        "reward.num_workers=1",
        "trainer.device=cpu",
        "trainer.logger=jsonl",
        "trainer.total_training_steps=2",
        "trainer.save_freq=-1",
        f"trainer.default_local_dir={folder}/run",
        *overrides,
    ]
    loaded = load_ppo(keys)
    setup.prepare(loaded)
    trainer = setup.build(loaded.config)
    trainer.init_workers()
    trainer.fit()
    lines = (folder / "run/metrics.jsonl").read_text().splitlines()
    return [{name: value for name, value in json.loads(line).items() if not name.startswith(CLOCKS)} for line in lines]
