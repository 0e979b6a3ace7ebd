"""One row of a file to one row of the prompt stream: the fields every later part relies on, whatever the file has.

Consumes a row as read; produces a dict with `raw_prompt` (messages), `data_source`, `reward_model`, `extra_info`,
`ability`, `agent_name`, `interaction_kwargs`, `tools_kwargs` and `index`, and every other column as it was. A field of
the wrong type is a `DataError` that names the field; the caller adds file and row.
"""

from collections.abc import Callable

from burnish.config.data import DataConfig
from burnish.data.chat import to_messages, without_nulls
from burnish.data.files import Row, lookup
from burnish.errors import DataError, NotAvailable

Check = Callable[[Row], str | None]  # what is wrong with a completed row, or None

# What a run itself adds to a batch, stage by stage, and the arguments of an agent loop's `run` besides the row.
_ADDED = {
    "the prompt stream": "uid sample greedy augmented",
    "rollout": "prompts responses input_ids attention_mask position_ids response_mask rollout_log_probs num_turns "
    "num_tool_calls truncated retrieved turn_scores tool_score interaction_score added_turn_rewards finish_reason "
    "policy_version agent_metrics new_prompts",
    "reward": "score_result rm_scores token_level_scores reward_info reward_baselines outcomes process_ref_log_prob "
    "process_rewards",
    "log-probs": "old_log_probs entropys sum_pi_squared ref_log_prob values",
    "credit": "token_level_rewards advantages returns rollout_is_weights loss_mask chosen",
    "agent loops": "self sampling_params messages",
}
# A file's column of such a name is kept as `row_<name>`.
TAKEN = frozenset(name for names in _ADDED.values() for name in names.split())

DEFAULT_REWARD = {"style": "rule", "ground_truth": None}
NO_SOURCE = "unknown"


def find_prompt_key(row: Row, prompt_key: str) -> str | None:
    """The column that holds the prompt: the configured one, else `prompts`, else messages made by a custom dataset."""
    return next((name for name in (prompt_key, "prompts", "raw_prompt") if row.get(name) is not None), None)


def complete_row(row: Row, *, prompt_key: str, reward_fn_key: str, position: int) -> Row:
    """The row with every standard field in place. `position` is its index where the row does not bring one."""
    key = find_prompt_key(row, prompt_key)
    if key is None:
        raise DataError(f"field '{prompt_key}' is missing or null (the row has: {', '.join(row) or 'nothing'})")
    try:
        messages = to_messages(row[key])
    except DataError as exc:
        raise DataError(f"field '{key}': {exc}") from exc
    source = lookup(row, reward_fn_key)
    if source is None and reward_fn_key != "data_source":
        raise DataError(f"field '{reward_fn_key}' (data.reward_fn_key) is missing or null")
    for name, value in ((reward_fn_key, source), ("agent_name", row.get("agent_name"))):
        if value is not None and not isinstance(value, str):
            raise DataError(f"field '{name}' is a {type(value).__name__} ({value!r:.60}), expected text")
    extra_info = _object(row, "extra_info")
    others = {kept_name(name): value for name, value in row.items() if name != key}
    return others | {
        "raw_prompt": messages,
        "data_source": NO_SOURCE if source is None else source,
        "reward_model": DEFAULT_REWARD | _object(row, "reward_model"),
        "extra_info": extra_info,
        "ability": row.get("ability"),
        "agent_name": row.get("agent_name"),
        "interaction_kwargs": without_nulls(_object(row, "interaction_kwargs", extra_info)),
        "tools_kwargs": without_nulls(_object(row, "tools_kwargs", extra_info)),
        "index": next((i for i in (extra_info.get("index"), row.get("index")) if i is not None), position),
    }


def checked_row(row: Row, config: DataConfig, where: str, position: int, check: Check | None) -> Row:
    """The completed row of a dataset; `where` names it in the DataError about what is wrong with it."""
    refuse_media(row, (config.image_key, config.video_key), where)
    keys = {"prompt_key": config.prompt_key, "reward_fn_key": config.reward_fn_key}
    try:
        full = complete_row(row, position=position, **keys)
    except DataError as exc:
        raise DataError(f"{where}: {exc}") from exc
    if check and (problem := check(full)):
        raise DataError(f"{where}: {problem}")
    return full


def kept_name(column: str) -> str:
    """The name under which a column stays in the row."""
    return f"row_{column}" if column in TAKEN else column


def refuse_media(row: Row, keys: tuple[str, ...], where: str) -> None:
    """Rows with pictures or videos need a model that reads them."""
    for key in keys:
        value = row.get(key)
        if value is not None and (not hasattr(value, "__len__") or len(value) > 0):
            raise NotAvailable(f"{key} in prompts ({where})", f"Drop the column '{key}' to train on the text alone.")


def _object(row: Row, name: str, fallback: Row | None = None) -> Row:
    """A field that holds named values; {} where it is absent. Some files keep it inside `extra_info`."""
    value = row.get(name)
    if value is None:
        value = (fallback or {}).get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise DataError(f"field '{name}' is a {type(value).__name__} ({value!r:.60}), expected an object")
    return value
