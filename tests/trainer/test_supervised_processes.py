"""`burnish sft` and `burnish rm` in two processes: metrics and weights of one, and checkpoints that either reads."""

import shutil

import pytest
from safetensors.torch import load_file

from burnish.controller import Dispatch, register
from burnish.engine.retry import OomRetries
from burnish.errors import WorkerDied
from burnish.trainer import supervised as supervised_loop
from burnish.trainer.rm_trainer import main as rm
from burnish.trainer.sft_trainer import main as sft
from burnish.trainer.supervised_worker import SupervisedWorker
from tests.trainer.cluster.conftest import differences
from tests.trainer.cluster.struck import strike, take_strike
from tests.trainer.conftest import events, jsonl

TWO = "trainer.n_gpus_per_node=2"


def metrics(folder):
    return [{k: v for k, v in line.items() if not k.startswith("perf/")} for line in jsonl(folder, "metrics.jsonl")]


@pytest.fixture
def run(supervised, world):
    OomRetries.take()  # what a run that ran out of memory in this process has left

    def go(command, *overrides, out):
        validation = (f"data.val_files={world / 'val.parquet'}", "trainer.test_freq=2", "trainer.save_freq=2")
        return supervised(command, *validation, *overrides, out=out)[0]

    return go


@pytest.mark.parametrize(("command", "keys"), [(sft, ()), (rm, ()), (sft, ("model.lora_rank=4",))])
def test_two_processes_give_the_run_of_one_and_each_resumes_from_the_other(run, tmp_path, command, keys):
    alone, two = run(command, *keys, out="alone"), run(command, *keys, TWO, out="two")
    assert differences(metrics(alone), metrics(two)) == []
    ours, theirs = (load_file(next((one / "global_step_4").glob("*model.safetensors"))) for one in (alone, two))
    assert ours.keys() == theirs.keys()
    for name, weight in ours.items():
        assert weight.float().numpy() == pytest.approx(theirs[name].float().numpy(), rel=2e-4, abs=2e-5), name
    for folder, processes in ((two, "trainer.n_gpus_per_node=1"), (alone, TWO)):
        begun = tmp_path / f"from-{folder.name}"
        shutil.copytree(folder / "global_step_2", begun / "global_step_2")
        (begun / "metrics.jsonl").write_text("".join((folder / "metrics.jsonl").open().readlines()[:2]))
        run(command, *keys, processes, out=begun.name)
        assert differences(metrics(alone), metrics(begun)) == []


class StruckWorker(SupervisedWorker):
    @register(dispatch_mode=Dispatch.TOGETHER)
    def train(self, batch, step):
        take_strike("train", self.rank, step)
        return super().train(batch, step)


def test_a_dead_process_costs_the_steps_since_the_last_checkpoint(run, tmp_path, monkeypatch):
    whole = run(sft, out="whole")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(supervised_loop, "SupervisedWorker", StruckWorker)
    strike("train", step=4)
    folder = run(sft, TWO, out="struck")
    (restart,) = events("restart", folder)
    assert (restart["failed_step"], restart["checkpoint"]) == (3, 2) and "rank 1 of 2 of pool 'sft'" in restart["error"]
    assert differences(metrics(whole), metrics(folder)) == []
    strike("train", step=1, always=True)
    with pytest.raises(WorkerDied, match=r"(?s)died while it ran StruckWorker.train.*Given up after .*max_restarts=1 "):
        run(sft, TWO, "trainer.max_restarts=1", out="twice")


def test_a_plan_is_of_one_process(supervised, world, capsys):
    peaks = []
    for processes in (1, 4):
        keys = ("trainer.device=cpu", "data.train_batch_size=4", f"trainer.n_gpus_per_node={processes}")
        supervised(sft, *keys, "--plan", "--gpu-memory=2")
        (line,) = [line for line in capsys.readouterr().out.splitlines() if "estimated peak memory" in line]
        number, unit, *said = line.partition("memory")[2].split()
        peaks.append(float(number) * 1024 ** ("KiB", "MiB", "GiB").index(unit.rstrip(":")))
    assert said[:5] == "in each of 4 processes:".split() and peaks[1] < peaks[0]
