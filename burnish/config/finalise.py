"""The last step from keys to a configuration that can run: derived defaults, and what does not go together.

A `finalise` is called once the estimator and the loss are known, because they say what they need. It reads no file,
changes the configuration in place, and returns notices for the user.
"""

from burnish.config.engines import check_engine, engine_spec
from burnish.config.generation import EvalConfig, GenerationConfig
from burnish.config.key import keys_of
from burnish.config.needs import Needs
from burnish.config.ppo import REWARD_MODEL, PPOConfig
from burnish.config.rules import Given, at_default, batch, loss, models, run, sampling
from burnish.config.rules.cluster import cluster
from burnish.config.rules.correction import correction, run_ahead
from burnish.config.rules.profiling import profiling
from burnish.config.rules.scoring import functions, rewards, scoring
from burnish.config.supervised import RMConfig, SFTConfig, SupervisedConfig
from burnish.config.trainer import ProcessesConfig
from burnish.errors import ConfigError

EXAMPLES = {"data.train_files": "train.parquet", "actor_rollout_ref.model.path": "Qwen/Qwen2.5-0.5B-Instruct"}
SUPERVISED_EXAMPLES = {"data.train_files": "train.parquet", "model.path": "Qwen/Qwen2.5-0.5B"}
GENERATION_EXAMPLES = {"data.path": "test.parquet", "data.output_path": "out.parquet"}
GENERATION_EXAMPLES |= {"model.path": "Qwen/Qwen2.5-0.5B-Instruct"}
EVAL_EXAMPLES = {"data.path": "out.parquet", "data.prompt_key": "prompt", "data.response_key": "responses"}
EVAL_EXAMPLES |= {"data.data_source_key": "data_source", "data.reward_model_key": "reward_model"}


def finalise(config: PPOConfig, explicit: frozenset[str], needs: Needs) -> list[str]:
    """Fill in derived values, refuse what cannot work; returns notices."""
    given = Given(explicit, needs)
    run.require(config, EXAMPLES)
    run.rows(config, given)
    policy = config.actor_rollout_ref
    check_engine(policy.rollout, policy.model, sampling.ROLLOUT, given)
    if config.trainer.deterministic and not (spec := engine_spec(policy.rollout.name)).deterministic:
        raise ConfigError(
            f"trainer.deterministic=true with {sampling.ROLLOUT}.name={spec.name}: {spec.label} chooses its own "
            "kernels, and what is batched together depends on when requests reach it; use "
            f"{sampling.ROLLOUT}.name=native, or drop the first"
        )
    sampling.lengths(config, given)
    sampling.agents(config, given)
    batch.group_size(config, given)
    sampling.sampling(config, given)
    loss.kl_terms(config, given)
    batch.mini_batches(config, given)
    batch.micro_batches(config, given)
    models.critic(config, given)
    models.process_reward(config, given)
    cluster(config, given)
    for name, model in config.models.items():
        models.lora(model, name, given, trains=name != REWARD_MODEL)
    models.offload(config, given)
    loss.clip_range(config, given)
    run_ahead(config, given)
    correction(config, given)
    rewards(config, given)
    loss.estimator_keys(config, given)
    loss.loss_keys(config, given)
    scoring(config, given)
    run.optimiser(config.actor_rollout_ref.actor.optim, "actor_rollout_ref.actor.optim")
    run.optimiser(config.critic.optim, "critic.optim")
    run.trainer(config.trainer, bool(config.data.val_files), given)
    run.checkpoint(config, given)
    profiling(config, given)
    if config.trainer.val_only and not config.data.val_files:
        raise ConfigError("trainer.val_only=true needs data.val_files")
    return given.notices


def finalise_sft(config: SFTConfig, explicit: frozenset[str]) -> list[str]:
    given, data = Given(explicit), config.data
    _supervised(config, given)
    if (data.prompt_key is None) != (data.response_key is None):
        raise ConfigError("data.prompt_key and data.response_key go together: a prompt and its response; give both")
    if data.prompt_key is not None and not at_default(data, "messages_key"):
        raise ConfigError(
            "data.messages_key is for conversations, data.prompt_key for single prompts; keep one of them"
        )
    return given.notices


def finalise_rm(config: RMConfig, explicit: frozenset[str]) -> list[str]:
    given, data = Given(explicit), config.data
    _supervised(config, given)
    if data.chosen_key == data.rejected_key:
        raise ConfigError(
            f"data.chosen_key and data.rejected_key are both {data.chosen_key}; name the column with the better answer "
            "and the one with the worse answer"
        )
    if others := data.apply_chat_template_kwargs.keys() - {"chat_template"}:
        raise ConfigError(
            f"data.apply_chat_template_kwargs.{min(others)}: a reward model is prompted with the template of its "
            "tokenizer only, so it has to be trained without further arguments; write a template that needs none "
            "in data.apply_chat_template_kwargs.chat_template, which is kept with the model"
        )
    return given.notices


def _supervised(config: SupervisedConfig, given: Given) -> None:
    run.require(config, SUPERVISED_EXAMPLES)
    models.lora(config.model, "model", given)
    config.data.val_files = config.data.val_files or []
    run.optimiser(config.optim, "optim")
    run.trainer(config.trainer, bool(config.data.val_files), given)
    if config.trainer.n_gpus_per_node in ("auto", 1):
        given.unused(
            "there is one process", *(f"trainer.{name}" for name in (*keys_of(ProcessesConfig), "max_restarts"))
        )


def finalise_generation(config: GenerationConfig, explicit: frozenset[str]) -> list[str]:
    given = Given(explicit)
    run.require(config, GENERATION_EXAMPLES)
    run.output_of_generation(config)
    check_engine(config.rollout, config.model, "rollout", given)
    models.lora(config.model, "model", given, trains=False)
    sampling.default_loop(config.rollout, "rollout", given, do_search=config.do_search)
    sampling.generation(config, given)
    return given.notices


def finalise_eval(config: EvalConfig, explicit: frozenset[str]) -> list[str]:
    given = Given(explicit)
    run.require(config, EVAL_EXAMPLES)
    run.outputs_of_evaluation(config)
    functions(config.custom_reward_function, given)
    scoring(config, given)
    return given.notices
