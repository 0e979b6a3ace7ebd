"""Checkpoints of several workers: any other number of them goes on as the run that was never stopped would have, and
what is written for transformers and for `burnish export` is what one process writes.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

from burnish.cli.main import main
from burnish.trainer.checkpoint import verify
from tests.trainer.cluster.conftest import LONG, differences, lines_of
from tests.trainer.conftest import GRPO, PPO, events

LORA = ["actor_rollout_ref.model.lora_rank=4", "actor_rollout_ref.actor.use_kl_loss=true"]
STEPS = ["trainer.save_freq=1", "trainer.total_epochs=1"]  # 12 rows by 4: three steps
ASYNC = "actor_rollout_ref.actor.checkpoint.async_save=true"
FSDP = "actor_rollout_ref.actor.fsdp_config"


@pytest.fixture
def going_on(run):
    """Go on with `workers` from step `step` of a finished run, in a copy of it; the metrics must be its own."""

    def go_on(source, workers, step, *overrides):
        folder = f"{source}-{workers}-from-{step}"
        shutil.copytree(source, folder, symlinks=True)
        for later in range(step + 1, 4):
            Path(f"{folder}/global_step_{later}/manifest.json").unlink()
        run(workers, *overrides, f"trainer.default_local_dir={folder}")
        assert events("resume", folder)[-1]["step"] == step
        assert not differences(lines_of(source), lines_of(folder)), f"on {workers} workers from step {step}"
        return folder

    return go_on


def test_saved_on_two_it_resumes_on_one_and_on_four(run, going_on):
    run(2, *PPO, *STEPS, "trainer.default_local_dir=whole")
    assert max(line["critic/grad_norm"] for line in lines_of("whole")) > 0
    for workers in (0, 4):
        going_on("whole", workers, 2, *PPO, *STEPS)


def weights(folder):
    return AutoModelForCausalLM.from_pretrained(folder).state_dict()


def logits(folder):
    with torch.no_grad():
        return AutoModelForCausalLM.from_pretrained(folder).eval()(torch.arange(3, 43)[None]).logits


def files_in(folder):
    return {str(path.relative_to(folder)): path for path in sorted(Path(folder).rglob("*")) if path.is_file()}


class TestLong:
    pytestmark = LONG

    @pytest.mark.parametrize("keys", [GRPO, [*GRPO, *LORA]], ids=["grpo", "lora"])
    def test_any_number_of_workers_resumes_from_any_other(self, run, going_on, keys):
        run(0, *keys, *STEPS, "trainer.default_local_dir=whole")
        for workers in (2, 4):
            going_on("whole", workers, 1, *keys, *STEPS)
        between = going_on("whole", 4, 2, *keys, *STEPS)
        shutil.move(between, "again")
        for workers in (1, 2):
            going_on("again", workers, 2, *keys, *STEPS)

    def test_hybrid_shards_are_saved_once_and_resume_on_two(self, run, going_on):
        run(4, *GRPO, *STEPS, f"{FSDP}.fsdp_size=2", "trainer.default_local_dir=whole")
        shards = [name for name in files_in("whole/global_step_2/actor") if name.startswith("masters")]
        assert len(shards) == 2, "each row by one of the processes that have it"
        going_on("whole", 2, 2, *GRPO, *STEPS)

    def test_offloaded_shards_resume_without_offload(self, run, going_on):
        offload = [f"{FSDP}.offload_policy=true"]
        run(2, *GRPO, *STEPS, *offload, "trainer.default_local_dir=whole")
        going_on("whole", 2, 1, *GRPO, *STEPS)
        shutil.rmtree("whole-2-from-1")
        going_on("whole", 2, 1, *GRPO, *STEPS, *offload)

    def test_a_resumed_run_on_the_same_workers_is_the_same_to_the_last_bit(self, run, going_on):
        run(2, *PPO, *STEPS, "trainer.default_local_dir=whole")
        folder = going_on("whole", 2, 1, *PPO, *STEPS)
        for role in ("actor", "critic"):
            for name, path in files_in(f"whole/global_step_3/{role}").items():
                if path.suffix == ".safetensors":
                    one, other = load_file(path), load_file(f"{folder}/global_step_3/{role}/{name}")
                    assert one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one), name

    def test_checkpoints_written_behind_training_are_the_same(self, run):
        run(2, *PPO, *STEPS, "trainer.default_local_dir=now")
        run(2, *PPO, *STEPS, ASYNC, "trainer.default_local_dir=behind")
        assert not differences(lines_of("now"), lines_of("behind"))
        for step in (1, 2, 3):
            one, other = (files_in(f"{run}/global_step_{step}") for run in ("now", "behind"))
            assert one.keys() == other.keys()
            verify(Path(f"behind/global_step_{step}"))
            for name, path in one.items():
                if path.suffix == ".safetensors":
                    first, second = load_file(path), load_file(other[name])
                    assert all(torch.equal(first[key], second[key]) for key in first), name
        assert [event["step"] for event in events("checkpoint", "behind")] == [1, 2, 3]

    def test_what_transformers_reads_is_what_one_process_writes(self, run):
        for workers in (0, 2, 4):
            run(workers, *PPO, "trainer.total_training_steps=1", f"trainer.default_local_dir=on-{workers}")
        one = files_in("on-0/global_step_1")
        for other in ("on-2", "on-4"):
            several = files_in(f"{other}/global_step_1")
            whole = {name for name in one if not Path(name).name.startswith(("masters", "optimizer"))}
            assert whole == {name for name in several if not Path(name).name.startswith(("masters", "optimizer"))}
            for name in whole:
                if Path(name).suffix != ".safetensors" and Path(name).name not in ("manifest.json", "engine.json",
                                                                                   "trainer.json"):  # fmt: skip
                    assert one[name].read_bytes() == several[name].read_bytes(), name
            first, second = weights("on-0/global_step_1"), weights(f"{other}/global_step_1")
            assert first.keys() == second.keys()
            assert all(first[key].shape == second[key].shape and first[key].dtype == second[key].dtype for key in first)
            assert torch.allclose(logits("on-0/global_step_1"), logits(f"{other}/global_step_1"), atol=1e-4)
            AutoModelForTokenClassification.from_pretrained(f"{other}/global_step_1/critic")

    @pytest.mark.parametrize("keys", [[], LORA], ids=["whole", "lora"])
    def test_burnish_export_takes_it(self, run, capsys, keys):
        for workers in (0, 2):
            folder = f"on-{workers}"
            run(workers, *GRPO, *keys, "trainer.total_training_steps=1", f"trainer.default_local_dir={folder}")
            assert main(["export", f"{folder}/global_step_1", "--out", f"export-{workers}"]) == 0
        assert sorted(files_in("export-0")) == sorted(files_in("export-2"))
        assert torch.allclose(logits("export-0"), logits("export-2"), atol=1e-4)
        config = [json.loads(Path(f"export-{workers}/config.json").read_text()) for workers in (0, 2)]
        assert config[0] == config[1]
