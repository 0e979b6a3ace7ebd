"""A run from Python, with a custom part: `python3 examples/custom_trainer/train.py key=value …`.

`PPOTrainer` takes its parts as arguments: worker classes by role, the pool they run on, the kind of worker group, and
the reward managers. This program hands it a policy worker that also reports how far its weights have moved. `build` in
burnish/trainer/setup.py makes the same trainer from the configuration alone.
"""

import sys

from burnish.config import load_ppo
from burnish.controller import Dispatch, ResourcePoolManager, Role, register
from burnish.controller.local import LocalWorkerGroup
from burnish.models.loading import load_tokenizer
from burnish.rewards.managers import load_manager
from burnish.rewards.scoring import Scoring
from burnish.trainer.ppo import PPOTrainer
from burnish.trainer.setup import prepare
from burnish.workers.actor_rollout_ref import ActorRolloutRefWorker


class MeasuredPolicy(ActorRolloutRefWorker):
    """The usual policy worker; `actor/moved` is the distance of its weights from where the run started."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self):
        super().init_model()
        self.start = [parameter.detach().clone() for parameter in self.actor.module.parameters()]

    @register(dispatch_mode=Dispatch.DP_COMPUTE_METRIC)
    def update_actor(self, data, step):
        metrics = super().update_actor(data, step)
        now = (parameter.detach() for parameter in self.actor.module.parameters())
        squares = sum(float((a - b).pow(2).sum()) for a, b in zip(now, self.start, strict=True))
        return metrics | {"actor/moved": [squares**0.5]}


def main(overrides):
    loaded = load_ppo(["algorithm.adv_estimator=grpo", *overrides])
    prepare(loaded)  # derived defaults, and checks of keys, files and model
    config = loaded.config
    tokenizer = load_tokenizer(config.actor_rollout_ref.model.path)
    custom, rules = config.custom_reward_function, config.reward_model
    scoring = Scoring.from_config(custom, config.reward, rules, config.data.reward_fn_key)
    trainer = PPOTrainer(
        config,
        tokenizer,
        role_worker_mapping={Role.ActorRolloutRef: MeasuredPolicy},
        resource_pool_manager=ResourcePoolManager({"pool": [1]}, {Role.ActorRolloutRef: "pool"}),
        worker_group_cls=LocalWorkerGroup,
        reward_fn=load_manager(config.reward_manager, rules, tokenizer, 0, scoring),
    )
    trainer.init_workers()
    return trainer.fit()


if __name__ == "__main__":
    print(main(sys.argv[1:]))
