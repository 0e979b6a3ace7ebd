"""The critic on a small random model: the same numbers with its weights in host memory between uses."""

import pytest
import torch

from burnish.config import PPOConfig
from burnish.controller.local import LocalWorkerGroup
from burnish.engine import offload
from burnish.protocol import DataProto
from burnish.workers.critic import CriticWorker

GROUPS, SAMPLES, PROMPT, RESPONSE = 4, 2, 4, 5


@pytest.fixture
def batch(token_batch):
    random = torch.Generator().manual_seed(0)
    rows = GROUPS * SAMPLES
    ids = torch.randint(3, 200, (rows, PROMPT + RESPONSE), generator=random)
    returns = torch.randn(rows, RESPONSE, generator=random)
    return token_batch(ids[:, :PROMPT], ids[:, PROMPT:], SAMPLES, returns=returns)


@pytest.fixture
def make_worker(tiny_model, tmp_path, monkeypatch):
    def make(param_offload):
        monkeypatch.setattr(offload, "SCARCE", "cpu" if param_offload else "cuda")
        config = PPOConfig()
        config.data.train_batch_size, config.trainer.default_local_dir = GROUPS, str(tmp_path)
        critic = config.critic
        critic.model.path, critic.optim.lr, critic.loss_agg_mode = str(tiny_model), 1e-2, "token-mean"
        critic.ppo_mini_batch_size, critic.ppo_epochs, critic.shuffle = 2, 1, False
        critic.use_dynamic_bsz, critic.ppo_max_token_len_per_gpu, critic.forward_max_token_len_per_gpu = True, 24, 24
        critic.checkpoint.load_contents = critic.checkpoint.save_contents
        critic.fsdp_config.param_offload = param_offload
        group = LocalWorkerGroup(CriticWorker(config, total_steps=4))
        group.init_model()
        return group

    return make


def held(group):
    return sum(p.untyped_storage().nbytes() for p in group.worker.critic.module.parameters())


def update(group, batch, values, step):
    group.update_critic(batch[:].union(DataProto.from_dict({"values": values})), step)


def train(group, batch, steps):
    seen = []
    for step in steps:
        values = group.compute_values(batch).batch["values"]
        update(group, batch, values, step)
        seen.append(values)
    return [*seen, group.compute_values(batch).batch["values"]]


def test_weights_in_host_memory_learn_and_are_saved_as_others_are(make_worker, batch, tmp_path):
    plain = make_worker(False)
    expected = train(plain, batch, [1, 2, 3])
    assert held(plain) > 0 and not expected[0].equal(expected[-1])

    parked = make_worker(True)
    assert held(parked) == 0
    seen = train(parked, batch, [1, 2])
    assert held(parked) == 0
    parked.save_checkpoint(tmp_path / "saved")
    parked.capture_checkpoint()
    update(parked, batch, seen[-1], 3)
    parked.save_checkpoint(tmp_path / "captured")  # before the third step
    last = parked.compute_values(batch).batch["values"]
    assert all(a.equal(b) for a, b in zip([*seen, last], expected, strict=True))

    for name in ("saved", "captured"):
        resumed = make_worker(True)
        resumed.load_checkpoint(tmp_path / name)
        assert held(resumed) == 0
        assert resumed.compute_values(batch).batch["values"].equal(expected[2])
