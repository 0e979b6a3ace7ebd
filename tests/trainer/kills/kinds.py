"""The kinds of run that the campaign kills: small jobs on the embedded models, by name."""

from dataclasses import dataclass, field

from benchmarks.same_numbers import JOINED
from burnish.cli.quickstart import NANO
from burnish.cli.quickstart_agents import NANO_AGENT
from tests.trainer.conftest import GRPO, PPO

STEPS = 6  # 12 rows in batches of 4, twice: steps 3 and 6 end an epoch

BEHIND = ["actor_rollout_ref.actor.checkpoint.async_save=True"]
LORA = ["actor_rollout_ref.model.lora_rank=2", "actor_rollout_ref.actor.use_kl_loss=True"]
KEEP = ["trainer.max_actor_ckpt_to_keep=1"]
DAPO = ["algorithm.filter_groups.enable=true", "algorithm.filter_groups.metric=score", "data.gen_batch_size=2"]
AGENT = [f"actor_rollout_ref.model.path={NANO_AGENT}", "custom_reward_function.path=null", "data.train_batch_size=2"]
CALCULATOR = ["data.train_files=../calculator.parquet", "data.max_prompt_length=40", "data.max_response_length=96"]
SEARCH = ["data.train_files=../search/data/train.parquet", "data.max_response_length=160", "data.max_obs_length=64",
          "do_search=true", "max_turns=2", "retriever.topk=2"]  # fmt: skip
TWO = ["trainer.n_gpus_per_node=2", "actor_rollout_ref.rollout.agent.num_workers=1"]
BY_ARRIVAL = ("rollout/steps", "rollout/prefill_tokens", "rollout/shared_tokens", "rollout/prefix_hit_tokens", *JOINED)
# Requests of another process join the engine's passes as they come: the last bits of the log-probs of samples differ.
BY_PASSES = (*BY_ARRIVAL, "response/entropy", "rollouts/")


@dataclass(frozen=True)
class Kind:
    keys: list[str]
    when: list[str] = field(default_factory=list)  # more keys of the killed runs, which may change no number
    command: str = "ppo"
    alone: bool = False  # started as `python -m burnish.cli.main`, not forked
    on_ray: bool = False  # SIGTERM to the group ends Ray's own processes too, and then Ray the command, with code 1
    copied: bool = False  # killed runs start in a copy of the finished run
    from_scratch: bool = False  # every start is from step 0
    prompts_only: bool = False  # its numbers depend on the clock
    differs: tuple[str, ...] = ()  # parts of names of metrics that do


def ahead(staleness: int) -> list[str]:
    return ["trainer.async_rollout.enable=true", f"trainer.async_rollout.staleness={staleness}"]


RUN = ["trainer.default_local_dir=run", "trainer.logger=jsonl", "trainer.device=cpu", "trainer.save_freq=1",
       f"trainer.total_training_steps={STEPS}"]  # fmt: skip
# The job of each command, in a folder next to the data.
SUPERVISED = ["data.train_files=../supervised.parquet", "data.max_length=128", "data.train_batch_size=3",
              f"model.path={NANO}", "optim.lr=0.01"]  # fmt: skip
JOBS = {
    "ppo": ["data.train_files=../train.parquet", "data.val_files=null", "data.train_batch_size=4",
            "data.shuffle=True", "data.max_prompt_length=32", "data.max_response_length=8",
            f"actor_rollout_ref.model.path={NANO}", "actor_rollout_ref.actor.ppo_mini_batch_size=2",
            "actor_rollout_ref.actor.optim.lr=1e-4", "custom_reward_function.path=../reward.py"],
    "sft": SUPERVISED,
    "rm": SUPERVISED,
}  # fmt: skip
KINDS = {
    "grpo": Kind(GRPO),
    "ppo": Kind(PPO),
    "grpo-behind": Kind(GRPO, BEHIND),
    "ppo-behind": Kind(PPO, BEHIND),
    "lora-behind": Kind([*GRPO, *LORA], BEHIND),
    "pruning": Kind(GRPO, KEEP),
    "pruning-behind": Kind(PPO, [*BEHIND, *KEEP]),
    "dapo": Kind([*GRPO, *DAPO]),
    "validation": Kind([*GRPO, "data.val_files=../test.parquet", "trainer.test_freq=1"]),
    "staleness-0": Kind(GRPO, ahead(0)),
    "staleness-1": Kind([*GRPO, *ahead(1)], prompts_only=True),
    "again": Kind(GRPO, ["trainer.resume_mode=disable"], from_scratch=True),
    "overwrite": Kind(
        GRPO, ["trainer.resume_mode=resume_path", "trainer.resume_from_path=run/global_step_1"], copied=True
    ),
    "calculator": Kind([*GRPO, *AGENT, *CALCULATOR]),
    "search": Kind([*GRPO, *AGENT, *SEARCH], differs=BY_ARRIVAL),
    "sft": Kind([], command="sft"),
    "rm": Kind([], ["trainer.max_ckpt_to_keep=2"], command="rm"),
    "command": Kind(GRPO, alone=True),
    "two": Kind([*GRPO, *TWO], alone=True, differs=BY_PASSES),
    "two-ppo-behind": Kind([*PPO, *TWO], BEHIND, alone=True, differs=BY_PASSES),
    "ray": Kind([*GRPO, *TWO, "trainer.executor=ray"], alone=True, on_ray=True, differs=BY_PASSES),
}
