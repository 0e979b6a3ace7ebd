"""Runs that train a LoRA adapter: what they save and go on from, and that the base is the reference and stays."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from burnish.config.model import ModelConfig
from burnish.data.files import read_rows, write_parquet
from burnish.data.tasks import arithmetic
from burnish.engine.batching import MicroBatch
from burnish.engine.forward import Forward
from burnish.engine.packing import pack
from burnish.engine.trainable import infer
from burnish.errors import CheckpointError, ConfigError, ModelError
from burnish.export import ExportRequest, export
from burnish.models.loading import load_causal_lm, load_reward_model, load_tokenizer
from burnish.trainer import setup
from burnish.trainer.checkpoint import verify
from burnish.trainer.main_generation import main as generation
from burnish.trainer.rm_trainer import main as rm
from burnish.trainer.sft_trainer import main as sft
from tests.trainer.conftest import NANO, build, jsonl, same, scores_of_six_steps, turns

MODEL = "actor_rollout_ref.model"
LORA = [f"{MODEL}.lora_rank=4", f"{MODEL}.lora_alpha=16", "actor_rollout_ref.actor.optim.lr=1e-2"]
GRPO = ["algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=3", "data.val_files=null"]
KL = ["actor_rollout_ref.actor.use_kl_loss=true"]


@torch.no_grad()
def logits(module):
    return module.eval()(torch.arange(3, 40)[None]).logits


def weights(folder):
    files = [file for file in sorted(Path(folder).glob("*.safetensors")) if "rng" not in file.name]
    assert files
    return {f"{file.name} {name}": tensor for file in files for name, tensor in load_file(file).items()}


def log_probs_of_base(folder, data):
    base = load_causal_lm(folder, ModelConfig())
    forward = Forward(base)
    return infer(base, lambda part: forward.log_probs(pack(part.batch)), data, MicroBatch(max_sequences=4))["log_prob"]


def test_a_run_saves_its_adapter_alone(train, tiny_model):
    before = weights(tiny_model)
    metrics = train(*GRPO, *LORA, *KL, "trainer.total_training_steps=2")
    folder, actor = Path("run/global_step_2"), Path("run/global_step_2/actor")
    verify(folder)
    files = {path.name for path in folder.rglob("*.safetensors")}
    assert files == {"adapter_model.safetensors", "masters.safetensors", "optimizer.safetensors", "rng.safetensors"}
    for name in ("adapter_config.json", "adapter_model.safetensors", "tokenizer.json"):
        assert (folder / name).is_symlink() and (folder / name).exists()
    assert not (actor / "config.json").exists()
    masters = load_file(actor / "masters.safetensors")
    assert masters and all("lora_" in name for name in masters), "the optimiser has nothing else"
    assert metrics["actor/grad_norm"] > 0
    assert same(weights(tiny_model), before)
    base = AutoModelForCausalLM.from_pretrained(tiny_model)
    plain = logits(base)
    assert not torch.allclose(logits(PeftModel.from_pretrained(base, actor)), plain, atol=1e-3)


def test_the_reference_is_the_base(build_trainer, tiny_model):
    """After updates that moved the policy away; and what the engine generates with is the policy as before."""
    trainer = build_trainer(*GRPO, *LORA, *KL, "trainer.total_training_steps=2")
    worker = trainer.policy.worker
    batches = []
    compute = worker.compute_ref_log_prob

    def watched(data):
        before, reference, after = worker.compute_log_prob(data), compute(data), worker.compute_log_prob(data)
        own = [found.batch["old_log_probs"] for found in (before, after)]
        batches.append((data, reference.batch["ref_log_prob"], own))
        return reference

    worker.compute_ref_log_prob = watched
    trainer.fit()
    assert worker.reference is worker.actor.forward, "no second copy"
    for data, reference, (before, after) in batches:
        assert torch.allclose(reference, log_probs_of_base(tiny_model, data), atol=1e-5)
        assert torch.equal(before, after), "the adapter is on again"
    (_, reference, (before, _)) = batches[-1]
    assert not torch.allclose(reference, before, atol=1e-3), "the policy has moved"


def test_resume_gives_the_run_that_was_never_stopped(resumes):
    """In bfloat16, where the optimiser steps on float32 copies."""
    files = [f"actor/{name}.safetensors" for name in ("adapter_model", "masters", "optimizer")]
    resumes(2, *GRPO, *LORA, *KL, f"{MODEL}.dtype=bfloat16", files=files)


def test_another_run_continues_from_the_adapter(begun, build_trainer, tiny_model):
    begun(*GRPO, *LORA, "trainer.total_training_steps=1")
    second = [f"{MODEL}.lora_adapter_path=run/global_step_1", "trainer.default_local_dir=second"]
    trainer = build_trainer(*GRPO, *KL, *second, "trainer.total_training_steps=1")
    worker = trainer.policy.worker
    assert worker.config.actor_rollout_ref.model.lora_rank == 4, "known to the plan"
    base = AutoModelForCausalLM.from_pretrained(tiny_model)
    adapted = PeftModel.from_pretrained(base, "run/global_step_1/actor")
    assert torch.allclose(logits(worker.actor.module), logits(adapted), atol=1e-5)
    trainer.fit()
    settings = json.loads(Path("second/global_step_1/actor/adapter_config.json").read_text())
    assert (settings["r"], settings["lora_alpha"]) == (4, 16)


def test_adapter_errors_are_reported_before_a_model_is_loaded(begun, train, job, reward, monkeypatch):
    begun(*GRPO, *LORA, "trainer.total_training_steps=1")
    for key, here in (("lora_rank=4", "lora_rank=8"), ("lora_alpha=16.0", "lora_alpha=128.0")):
        with pytest.raises(CheckpointError, match=rf"saved with {key} of its adapter, and this run has {here}"):
            train(*GRPO, *LORA, "trainer.total_training_steps=2", f"{MODEL}.{here}")
    monkeypatch.setattr(setup, "build", None)
    adapter = f"{MODEL}.lora_adapter_path=run/global_step_1"
    with pytest.raises(ConfigError, match="lora_rank=8 with .*that adapter has rank 4"):
        build(*job, *GRPO, adapter, f"{MODEL}.lora_rank=8")
    with pytest.raises(ModelError, match=rf"{MODEL}.lora_adapter_path: .*no adapter_config\.json there"):
        build(*job, *GRPO, f"{MODEL}.lora_adapter_path=.")
    with pytest.raises(ModelError, match=r"a LoRA adapter, .*`burnish export run/global_step_1 --out"):
        build(*job, *GRPO, f"{MODEL}.path=run/global_step_1", "trainer.default_local_dir=second")


def test_a_critic_with_an_adapter_saves_its_head_with_it(train):
    ppo = ["algorithm.adv_estimator=gae", "critic.model.lora_rank=2", "critic.optim.lr=1e-2", "data.val_files=null"]
    metrics = train(*ppo, "trainer.total_training_steps=1")
    assert metrics["critic/grad_norm"] > 0
    folder = "run/global_step_1/critic"
    names = set(load_file(f"{folder}/adapter_model.safetensors"))
    assert {"base_model.model.score.weight", "base_model.model.score.bias"} < names
    assert (Path("run/global_step_1/actor") / "model.safetensors").is_file(), "the actor is trained whole"


def test_a_process_reward_model_with_an_adapter_starts_at_its_base(build_trainer, reward, tiny_model):
    reward("return float(len(set(solution_str)) % 2)")
    prime = ["algorithm.adv_estimator=prime", "process_reward.model.lora_rank=4", "process_reward.optim.lr=1e-2"]
    trainer = build_trainer(*prime, *GRPO[1:], "trainer.total_training_steps=2")
    worker = trainer.process_reward.worker
    started = []
    compute = worker.compute_start_log_prob
    worker.compute_start_log_prob = lambda data: started.append((data, compute(data))) or started[-1][1]
    trainer.fit()
    assert worker.start is worker.model.forward
    data, found = started[-1]
    expected = log_probs_of_base(tiny_model, data)
    assert torch.allclose(found.batch["process_ref_log_prob"], expected, atol=1e-5)
    moved = worker.model.infer(lambda part: worker.model.forward.log_probs(pack(part.batch)), data, worker.micro_batch)
    assert not torch.allclose(moved["log_prob"], expected, atol=1e-3)


def test_supervised_fine_tuning_and_generation_with_what_it_trained(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    messages = turns("1+1", "two")
    write_parquet([{"messages": messages}] * 4, "sft.parquet")
    write_parquet([{"prompt": messages[:1]}], "prompts.parquet")
    model = [f"model.path={NANO}", "trainer.device=cpu"]
    sft(["data.train_files=sft.parquet", "data.max_length=128", *model, "model.lora_rank=8", "optim.lr=0.01",
         "data.train_batch_size=4", "trainer.total_training_steps=30", "trainer.default_local_dir=run"])  # fmt: skip
    steps = jsonl("run/metrics.jsonl")
    assert steps[-1]["train/loss"] < steps[0]["train/loss"] / 10
    generate = ["data.path=prompts.parquet", *model, "rollout.temperature=0", "rollout.response_length=8"]
    generation([*generate, "data.output_path=out.parquet", "model.lora_adapter_path=run/global_step_30"])
    generation([*generate, "data.output_path=base.parquet"])
    (answer,), (other,) = (read_rows(name)[0]["responses"] for name in ("out.parquet", "base.parquet"))
    assert answer == "two" != other


def test_a_reward_model_with_an_adapter_scores_a_run(train, job, tiny_model, tmp_path):
    """It reads where it was taught to read, also where its base has another padding token."""
    base = shutil.copytree(tiny_model, tmp_path / "base")
    config = json.loads((base / "config.json").read_text())
    end = load_tokenizer(base).eos_token_id
    (base / "config.json").write_text(json.dumps(config | {"pad_token_id": end}))
    pairs = [{"prompt": f"{i}+1", "chosen": "yes", "rejected": "no"} for i in range(4)]
    write_parquet(pairs, "pairs.parquet")
    rm(["data.train_files=pairs.parquet", "data.val_files=pairs.parquet", "data.max_length=128", f"model.path={base}",
        "model.lora_rank=8", "optim.lr=0.01", "data.train_batch_size=4", "trainer.total_training_steps=10",
        "trainer.default_local_dir=rm", "trainer.device=cpu"])  # fmt: skip
    last = jsonl("rm/metrics.jsonl")[-1]
    assert last["val/accuracy"] == 1
    judge = load_reward_model(base, ModelConfig(path=str(base), lora_adapter_path="rm/global_step_10"))
    assert judge.config.pad_token_id != end
    tokenizer, forward = load_tokenizer(base), Forward(judge)

    def score(prompt, answer):
        text = tokenizer.apply_chat_template(turns(prompt, answer), tokenize=False)
        ids = torch.tensor([tokenizer(text)["input_ids"]])
        return forward.scores(ids, torch.ones_like(ids)).item()

    margins = [score(row["prompt"], row["chosen"]) - score(row["prompt"], row["rejected"]) for row in pairs]
    assert sum(margins) / 4 == pytest.approx(last["val/margin"], abs=1e-4)
    with pytest.raises(ModelError, match=r"the adapter of a reward model, .*reward_model\.model\.lora_adapter_path"):
        export(ExportRequest("rm/global_step_10", tmp_path / "merged"), lambda line: None)
    rows = [row | {"reward_model": {"style": "model"}} for row in arithmetic.rows("train", 4, seed=0)]
    write_parquet(rows, "train.parquet")
    metrics = train(*GRPO, "reward_model.enable=true", f"reward_model.model.path={base}",
                    "reward_model.model.lora_adapter_path=rm/global_step_10", "trainer.total_training_steps=1",
                    "custom_reward_function.path=null")  # fmt: skip
    assert "reward_model/score/mean" in metrics


@pytest.mark.slow
def test_it_learns_the_quickstarts_task(tmp_path, monkeypatch):
    """With a quarter of its parameters to train, from right once in ten times to right most of the time."""
    monkeypatch.chdir(tmp_path)
    lora = [f"{MODEL}.lora_rank=16", f"{MODEL}.lora_alpha=32", "actor_rollout_ref.actor.optim.lr=1e-3"]
    scores = scores_of_six_steps("run", *lora)
    assert scores[0] < 0.3 and min(scores[-2:]) > 0.7, scores
