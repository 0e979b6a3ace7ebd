"""The same jobs on a GPU: the loop, checkpoints and resume on a CUDA device."""

import math

import pytest
import torch

from burnish.algorithms import advantages, losses
from burnish.data.files import write_parquet
from burnish.data.tasks import arithmetic
from burnish.models.tiny import write_tiny_model
from burnish.trainer.rm_trainer import main as rm
from tests.trainer.conftest import GRPO, write_judge

pytestmark = pytest.mark.gpu
PPO = ["algorithm.adv_estimator=gae", "algorithm.kl_ctrl.kl_coef=0.01"]
LORA = [*GRPO, "actor_rollout_ref.model.lora_rank=4", "actor_rollout_ref.actor.use_kl_loss=True"]


@pytest.mark.parametrize("algorithm", [GRPO, PPO, LORA], ids=["grpo", "ppo", "lora"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_run_on_the_gpu(build_trainer, metrics_of, algorithm, dtype):
    model = [f"actor_rollout_ref.model.dtype={dtype}", f"critic.model.dtype={dtype}"]
    trainer = build_trainer(*algorithm, *model[: 1 + (algorithm is PPO)], "trainer.device=cuda", "trainer.save_freq=2")
    assert next(trainer.policy.worker.actor.module.parameters()).device.type == "cuda"
    trainer.fit()
    lines = metrics_of("run")
    assert [line["step"] for line in lines] == [0, 1, 2, 3] and lines[1]["actor/grad_norm"] > 0
    limit = 1e-5 if dtype == "float32" else 0.05  # probabilities of the sampled tokens, rollout against training pass
    assert all(line["training/rollout_probs_diff_max"] < limit for line in lines[1:])


def test_resume_on_the_gpu(train, metrics_of):
    common = [*GRPO, "trainer.device=cuda", "data.val_files=null", "trainer.save_freq=1", "trainer.deterministic=True"]
    train(*common, "trainer.total_training_steps=4", "trainer.default_local_dir=whole")
    train(*common, "trainer.total_training_steps=2", "trainer.default_local_dir=parts")
    train(*common, "trainer.total_training_steps=4", "trainer.default_local_dir=parts")
    for one, other in zip(metrics_of("whole"), metrics_of("parts"), strict=True):
        assert one == pytest.approx(other, rel=1e-4, abs=1e-5)


@pytest.fixture
def in_float32(monkeypatch):
    """`auto` is float32 on this GPU too, so that its figures are those of a CPU."""
    monkeypatch.setattr("burnish.models.device.BFLOAT16", (99, 0))


def test_a_gpu_computes_in_bfloat16_by_default(build_trainer):
    trainer = build_trainer(*GRPO, "trainer.device=cuda")
    assert next(trainer.policy.worker.actor.module.parameters()).dtype == torch.bfloat16
    assert all(master.dtype == torch.float32 for master in trainer.policy.worker.actor.masters.values())


@pytest.mark.parametrize(("keys", "size", "kind"), [(GRPO, 48, "qwen2"), (LORA, 80, "qwen2"), (GRPO, 112, "qwen3")])
def test_kernels_are_compiled_before_the_first_step(build_trainer, metrics_of, monkeypatch, keys, size, kind):
    """For a model whose sizes no other test has: what was compiled in this process is not compiled again."""
    import triton

    sizes = dict(hidden_size=size, intermediate_size=3 * size, vocab_size=300 + size, num_key_value_heads=1)
    model = write_tiny_model("odd", model_type=kind, **sizes)
    place = [f"actor_rollout_ref.model.path={model}", "trainer.device=cuda", "data.val_files=null"]
    trainer = build_trainer(*keys, *place)
    late = []
    monkeypatch.setattr(triton.knobs.compilation, "listener", lambda *, src, **_: late.append(src.name))
    trainer.fit()
    assert metrics_of("run")[-1]["actor/grad_norm"] > 0 and late == []


EVERY = {
    **{name: [f"algorithm.adv_estimator={name}"] for name in advantages.TABLE.entries},
    **{f"loss-{name}": [GRPO[0], f"{losses.TABLE.key}={name}"] for name in losses.TABLE.entries},
    "weights-and-masks": [GRPO[0], "algorithm.rollout_correction.rollout_is=token",
                          "algorithm.rollout_correction.rollout_rs=seq_mean_k3",
                          "algorithm.rollout_correction.rollout_rs_threshold=0.5"],
    "bypass": [GRPO[0], "algorithm.rollout_correction.bypass_mode=true",
               "algorithm.rollout_correction.rollout_rs=token_k3",
               "algorithm.rollout_correction.rollout_rs_threshold=0.5"],
    "bypass-reinforce": [GRPO[0], "algorithm.rollout_correction.bypass_mode=true",
                         "algorithm.rollout_correction.loss_type=reinforce",
                         "algorithm.rollout_correction.rollout_is=sequence"],
    "lora": LORA,
}  # fmt: skip


@pytest.mark.parametrize("keys", EVERY.values(), ids=EVERY)
def test_every_algorithm_gives_the_numbers_of_the_cpu(reward, train, metrics_of, in_float32, keys):
    """In float32, at the first step: from the second on, rounding can change what is sampled."""
    reward('n = len(set(solution_str)); return {"score": float(n % 3), "acc": float(n % 2)}')
    for device in ("cpu", "cuda"):
        train(*keys, "data.val_files=null", "trainer.total_training_steps=1", f"trainer.device={device}",
              f"trainer.default_local_dir={device}")  # fmt: skip
    compare(metrics_of, ["actor/pg_loss", "actor/grad_norm", "critic/advantages/max"], "actor/", "critic/",
            "process_reward/", "rollout_corr/")  # fmt: skip
    assert len({metrics_of(device)[0]["response_length/mean"] for device in ("cpu", "cuda")}) == 1


def compare(metrics_of, some, *starts):
    cpu, gpu = metrics_of("cpu")[0], metrics_of("cuda")[0]
    compared = [name for name in cpu if name.startswith(starts)]
    assert set(some) <= set(compared)
    for name in compared:
        assert math.isfinite(gpu[name]) and gpu[name] == pytest.approx(cpu[name], rel=2e-2, abs=2e-4), name


def test_a_reward_model_gives_the_scores_of_the_cpu(train, metrics_of, in_float32, tiny_model, tmp_path):
    write_judge(tiny_model, tmp_path / "judge")
    rows = arithmetic.rows("train", 12, seed=0)
    for row in rows:
        row["reward_model"]["style"] = "model"
    write_parquet(rows, "train.parquet")
    for device in ("cpu", "cuda"):
        train(*GRPO, "reward_model.enable=true", f"reward_model.model.path={tmp_path / 'judge'}", "data.val_files=null",
              "reward_model.micro_batch_size_per_gpu=3", "trainer.total_training_steps=1", f"trainer.device={device}",
              f"trainer.default_local_dir={device}")  # fmt: skip
    compare(metrics_of, ["reward_model/score/mean"], "reward_model/", "critic/score/")


def test_a_step_of_rm_gives_the_numbers_of_the_cpu(metrics_of, in_float32, tiny_model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pairs = [{"prompt": f"{i}+1", "chosen": f"{i + 1}", "rejected": "no " * i} for i in range(1, 9)]
    write_parquet(pairs, "pairs.parquet")
    for device in ("cpu", "cuda"):
        rm(["data.train_files=pairs.parquet", "data.max_length=128", "data.train_batch_size=8",
            f"model.path={tiny_model}", "trainer.total_training_steps=1", f"trainer.device={device}",
            f"trainer.default_local_dir={device}"])  # fmt: skip
    compare(metrics_of, ["train/loss"], "train/")
