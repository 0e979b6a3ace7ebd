"""From the keys in a dump, which may come from anyone, and those on the command line to a configuration to replay with.

Nothing in a dump may have code run or files read outside of it: keys that name code or a path are taken from the
command line only, and where the update needs one, the error names the argument to give. Values are converted as those
of a command line are, and the rules of the loss hold for what is set otherwise.
"""

import logging
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from burnish.algorithms import advantages, losses
from burnish.config import PPO, RM, SFT, Loaded, PPOConfig, Schema, load
from burnish.config.build import convert_all
from burnish.config.key import KnownKey, keys_of, write
from burnish.config.ppo import ACTOR_MODEL, CRITIC_MODEL, PROCESS_REWARD_MODEL
from burnish.config.rules import Given, loss
from burnish.config.rules.correction import BYPASS, LOSS_MODE, correction
from burnish.config.values import show
from burnish.engine.dump import MODEL, Dump
from burnish.errors import CheckpointError, ConfigError
from burnish.models.folder import ADAPTER_CONFIG, read_json, safetensors_files

log = logging.getLogger(__name__)

SCHEMAS: dict[str, Schema[Any]] = {schema.name: schema for schema in (PPO, SFT, RM)}
MODELS = {
    "ppo": {"actor": ACTOR_MODEL, "critic": CRITIC_MODEL, "process_reward": PROCESS_REWARD_MODEL},
    "sft": {"sft": "model"},
    "rm": {"rm": "model"},
}
ACTOR, CLIP = loss.ACTOR, f"{loss.ACTOR}.clip_ratio"
TABLES = {LOSS_MODE: losses.TABLE, "algorithm.adv_estimator": advantages.TABLE}  # a name of these, or an import path
CODE = ("trust_remote_code", "external_lib")  # ends of keys that have code run
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
LENGTHS = ("data.max_prompt_length", "data.max_response_length", "data.max_start_length")  # the limit of a response
# What an update reads of a configuration, by role; and what it does not read of that.
READ = {
    "actor": (
        ACTOR_MODEL, ACTOR, "algorithm.rollout_correction", *LENGTHS,
        "actor_rollout_ref.rollout.temperature", "actor_rollout_ref.rollout.do_sample",
    ),
    "critic": ("critic", *LENGTHS),
    "process_reward": ("process_reward",),
    "sft": ("model", "data.max_length", "data.micro_batch_size_per_gpu", "data.packing"),
    "rm": ("model", "data.max_length", "data.micro_batch_size_per_gpu", "data.apply_chat_template_kwargs"),
}  # fmt: skip
BY_ALL = ("trainer.device", "trainer.seed", "trainer.deterministic")
OF_STEPS = ("optim", "grad_clip", "ppo_epochs", "shuffle", "ppo_mini_batch_size", "mini_batch_size", "checkpoint")


def config_of(dump: Dump, overrides: Sequence[str]) -> Any:
    """The configuration of the run with these keys set otherwise, and with the dump's own weights as the role's model.
    Of what follows from other keys, only the clip range and a KL term that its coefficient switches on follow again."""
    role, models = dump.update.role, MODELS.get(dump.command, {})
    if role not in models:
        raise CheckpointError(f"{dump.folder} was written by `burnish {dump.command}` ({role}), unknown here")
    schema = SCHEMAS[dump.command]
    [asked] = load(list(overrides), schema)
    config, known = schema.root(), keys_of(schema.root)
    values = _values(dump, known)
    _refuse_code(dump, values, asked, models[role])
    kept = {name: value for name, value in values.items() if not _is_foreign(known[name], value)}
    for name, value in (kept | _weights(dump, values, asked, models[role]) | asked.given).items():
        write(config, name, value)
    asked.log_notices()
    reads = tuple(f"{part}." for part in (*READ[role], *BY_ALL))
    read = [name for name in asked.given if f"{name}.".startswith(reads) and not set(name.split(".")) & set(OF_STEPS)]
    given = Given(frozenset(read))
    if unread := sorted(asked.given.keys() - given.explicit):
        given.say(f"no effect: {', '.join(unread)} (an update that is replayed does not read it)")
    if role == "actor":
        _follow(config, values, asked.given, given)
    for notice in given.notices:
        log.warning("%s", notice)
    return config


def _values(dump: Dump, known: Mapping[str, KnownKey]) -> dict[str, Any]:
    """Every key of the run, in the type of the key; CheckpointError where the dump has others, or not all."""
    other = f"{dump.folder} comes from another version, burnish {dump.versions.get('burnish')}, or damaged:"
    if unknown := dump.config.keys() - known.keys():
        raise CheckpointError(f"{other} it has the key {min(unknown)}, which is unknown here")
    if missing := known.keys() - dump.config.keys():
        raise CheckpointError(f"{other} it lacks {len(missing)} of the keys, such as {min(missing)}")
    try:
        return convert_all(dump.config, known)
    except ConfigError as error:
        raise CheckpointError(f"the dump {dump.folder} is damaged ({error}); copy it again") from error


def _is_foreign(known: KnownKey, value: Any) -> bool:
    """Whether a value names code, or a place on the machine that wrote it: it is not taken over from a dump."""
    if known.name in TABLES:
        return not TABLES[known.name].is_built_in(value)
    return known.about.path or known.about.import_path or known.name.endswith(CODE)


def _refuse_code(dump: Dump, values: Mapping[str, Any], asked: Loaded[Any], model: str) -> None:
    used = {f"{model}.{name}": values[f"{model}.{name}"] for name in CODE if values[f"{model}.{name}"]}
    if dump.update.role == "actor" and not losses.TABLE.is_built_in(values[LOSS_MODE]):
        used[LOSS_MODE] = values[LOSS_MODE]
    if wanted := [_argument(name, value) for name, value in used.items() if name not in asked.given]:
        raise ConfigError(
            f"the run of {dump.folder} used code: {', '.join(wanted)}. A dump never runs code on its own; set it on "
            f"the command line if you trust it: burnish replay {shlex.quote(str(dump.folder))} {' '.join(wanted)}"
        )


def _argument(name: str, value: Any) -> str:
    """`key=value` as it can be typed into a shell; the value comes from a dump, and may hold anything."""
    text = shlex.quote(f"{name}={show(value)}")
    return text if text.isprintable() else ascii(text)


def _weights(dump: Dump, values: Mapping[str, Any], asked: Loaded[Any], model: str) -> dict[str, Any]:
    """The keys that make the dump's weights the role's model; with LoRA they are an adapter on a base."""
    weights = dump.folder / MODEL
    if pickles := sorted(path.name for path in weights.glob("*") if path.suffix in PICKLES):
        raise CheckpointError(f"{weights} holds {pickles[0]}: a dump has only safetensors, and nothing else is read")
    safetensors_files(weights)  # refuses names that lead out
    is_adapter = (weights / ADAPTER_CONFIG).is_file()
    if not is_adapter and (values[f"{model}.lora_rank"] or values[f"{model}.lora_adapter_path"]):
        raise CheckpointError(f"the dump {dump.folder} is damaged (no {MODEL}/{ADAPTER_CONFIG}); copy it again")
    ours = {f"{model}.tokenizer_path": str(weights)}
    if not is_adapter:
        return ours | {f"{model}.path": str(weights)}
    ours[f"{model}.lora_adapter_path"] = str(weights)
    return ours if f"{model}.path" in asked.given else ours | {f"{model}.path": _base(weights, model)}


def _base(adapter: Path, model: str) -> str:
    """The folder of the base that an adapter in a dump names. Only one on this machine is used: nothing is fetched."""
    base = read_json(adapter / ADAPTER_CONFIG).get("base_model_name_or_path")
    if not isinstance(base, str) or not Path(base).is_absolute() or not Path(base).is_dir():
        named = _argument(f"{model}.path", base)
        raise ConfigError(
            f"the dump holds an adapter, and its base is no folder on this machine: the run used {named}; give it on "
            f"the command line, {model}.path=FOLDER (or a hub id, if it is to be fetched)"
        )
    text = "the base of the adapter is %s on this machine, which the dump names; %s.path=… names another"
    log.warning(text, base, model)
    return base


def _follow(config: PPOConfig, values: Mapping[str, Any], asked: Mapping[str, Any], given: Given) -> None:
    if asked.get(BYPASS, values[BYPASS]) != values[BYPASS]:
        raise ConfigError(
            f"{BYPASS}={show(asked[BYPASS])}: it says what the old log-probs are, and those are the dump's, of a run "
            f"with {BYPASS}={show(values[BYPASS])}; leave it out"
        )
    actor, section = config.actor_rollout_ref.actor, config.algorithm.rollout_correction
    for side in ("low", "high") if CLIP in asked else ():
        if f"{CLIP}_{side}" not in asked and values[f"{CLIP}_{side}"] == values[CLIP]:
            write(config, f"{CLIP}_{side}", None)
    loss.kl_terms(config, given)
    loss.clip_range(config, given)
    loss.loss_keys(config, given)
    if section.bypass_mode:
        given.needs = losses.needs_of(actor.policy_loss.loss_mode)
        correction(config, given)
    else:
        given.unused(f"{BYPASS} is off: the weights are the dump's", *given.below("algorithm.rollout_correction"))
    cut, by = "ppo_max_token_len_per_gpu", "rows"
    if actor.use_dynamic_bsz:
        cut, by = "ppo_micro_batch_size_per_gpu", "tokens"
    given.unused(f"{ACTOR}.use_dynamic_bsz={show(actor.use_dynamic_bsz)} cuts by {by}", f"{ACTOR}.{cut}")
