"""Keys of host memory: refused where the weights are shared, and reported where they move nothing."""

import pytest

from burnish.config import SFTConfig
from burnish.config.rules.models import without_gpu
from burnish.errors import ConfigError

ACTOR, REF = "actor_rollout_ref.actor.fsdp_config", "actor_rollout_ref.ref.fsdp_config"
JUDGE = {"reward_model.enable": True, "reward_model.model.path": "x"}
KL = {"actor_rollout_ref.actor.use_kl_loss": True}


def told(notices, *words):
    return [notice for notice in notices if all(word in notice for word in words)]


def test_the_weights_of_the_actor_stay_where_the_rollout_engine_reads_them(finish):
    with pytest.raises(
        ConfigError, match=r"param_offload=true: the rollout engine.*optimizer_offload.*activation.*lora"
    ):
        finish({f"{ACTOR}.param_offload": True})


def test_supported_offload_gives_no_notice(finish):
    keys = {f"{REF}.param_offload": True, f"{ACTOR}.optimizer_offload": True}
    config, notices = finish(KL | keys | {"actor_rollout_ref.model.enable_activation_offload": True})
    assert not told(notices, "offload") and config.actor_rollout_ref.ref.fsdp_config.param_offload


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({f"{REF}.param_offload": True}, "no KL term reads the reference"),
        (KL | {f"{REF}.param_offload": True, "actor_rollout_ref.model.lora_rank": 8}, "with LoRA the reference is"),
        (KL | {f"{REF}.optimizer_offload": True}, "the reference is not trained"),
        (JUDGE | {"reward_model.model.enable_activation_offload": True}, "the reward model is not trained"),
        (JUDGE | {"reward_model.model.fsdp_config.optimizer_offload": True}, "the reward model is not trained"),
    ],
)
def test_offload_keys_without_effect_are_reported(finish, keys, reason):
    notices = finish(keys)[1]
    assert len(told(notices, "no effect", reason, "_offload")) == 1
    assert not told(finish({name: value for name, value in keys.items() if "offload" not in name})[1], "offload")


def test_several_processes_have_a_copy_for_the_engine_so_the_actor_may_move(finish):
    config, notices = finish({f"{ACTOR}.param_offload": True, "trainer.n_gpus_per_node": 2})
    assert config.actor_rollout_ref.actor.fsdp_config.param_offload and not told(notices, "offload")
    with pytest.raises(ConfigError, match=r"param_offload=true: the rollout engine.*or several processes"):
        finish({f"{ACTOR}.param_offload": True, "trainer.executor": "ray", "trainer.n_gpus_per_node": 1})


def test_offload_by_fsdp_itself_needs_fsdp(finish):
    with pytest.raises(
        ConfigError, match=r"ref\.fsdp_config\.offload_policy=true.*there is only one; use .*param_offload"
    ):
        finish(KL | {f"{REF}.offload_policy": True})
    several = KL | {"trainer.n_gpus_per_node": 2, f"{REF}.offload_policy": True}
    assert not told(finish(several)[1], "offload")
    (notice,) = told(finish(several | {f"{REF}.param_offload": True})[1], "offload")
    assert notice == f"no effect: {REF}.param_offload ({REF}.offload_policy keeps all of it in host memory)"


def test_on_a_cpu_every_key_is_named(finish):
    keys = {f"{REF}.param_offload": True, "critic.fsdp_config.optimizer_offload": True}
    (notice,) = without_gpu(finish(KL | keys)[0])
    assert (
        notice
        == f"no effect: {REF}.param_offload, critic.fsdp_config.optimizer_offload (a CPU computes in host memory)"
    )
    assert without_gpu(finish(KL)[0]) == []
    config = SFTConfig()
    config.model.enable_activation_offload = True
    assert "model.enable_activation_offload" in without_gpu(config)[0]
