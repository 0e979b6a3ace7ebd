"""The command under `torchrun`: its first process starts the workers, the others have nothing to do."""

import os
import subprocess
import sys

import pytest

from burnish.entry.keys import of_torchrun
from burnish.errors import ConfigError
from tests.trainer.cluster.conftest import differences, lines_of
from tests.trainer.conftest import GRPO

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_MAX_RESTARTS": "0", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "4", "GROUP_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1",
}  # fmt: skip


@pytest.fixture
def environment(monkeypatch):
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


def test_first_process_has_as_many_workers_and_nothing_of_torchrun_is_left(environment):
    assert of_torchrun(["trainer.seed=2"]) == ["trainer.seed=2", "trainer.n_gpus_per_node=4"]
    assert not TORCHRUN.keys() & os.environ.keys()
    assert of_torchrun(["trainer.seed=2"]) == ["trainer.seed=2"]


def test_number_that_is_set_stays(environment):
    assert of_torchrun(["trainer.n_gpus_per_node=2"]) == ["trainer.n_gpus_per_node=2"]


def test_other_processes_have_nothing_to_do(environment):
    environment.setenv("RANK", "1")
    assert of_torchrun([]) is None


def test_several_machines_are_refused(environment):
    environment.setenv("GROUP_WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="torchrun on 2 machines: .* use Ray"):
        of_torchrun([])


@pytest.mark.parametrize("executor", ["processes"], indirect=True)
def test_metrics_are_those_of_one_process(run, job):
    run(0, *GRPO, "trainer.default_local_dir=one")
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "-m", "burnish.trainer.main_ppo"]
    done = subprocess.run([*words, *job, "data.val_files=null", *GRPO], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not differences(lines_of("one"), lines_of("run"))
