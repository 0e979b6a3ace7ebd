"""What a step reports: samples as a person reads them, the metrics of its batch, and updates that were not applied.

Consumes finished batches; produces rows for the run folder and metrics. Nothing here changes a batch.
"""

import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from burnish.algorithms.metrics import data_metrics, lengths, reduce_metrics, throughput_metrics, timing_metrics
from burnish.algorithms.signal import signal_metrics, spread_within_groups
from burnish.config import PPOConfig
from burnish.data.augment import AUGMENTED
from burnish.engine.dump import FOLDER as DUMPS
from burnish.engine.dump import dump_folder
from burnish.engine.retry import OOM_RETRIES
from burnish.errors import BadStepError
from burnish.protocol import DataProto
from burnish.rewards.contract import unboxed
from burnish.rollout.stops import UNFINISHED
from burnish.workers.trajectories import VERSIONS

log = logging.getLogger(__name__)

# Called after each step, before its checkpoint, with its number, its metrics and what makes its samples (`sample_rows`;
# nothing in supervised training); returns whether it shall be the last.
OnStep = Callable[[int, Mapping[str, float], Callable[[], list[dict[str, Any]]]], bool]


LONGEST = 8  # tokens that one character, or a few broken bytes, are split over


def sample_rows(batch: DataProto, tokenizer: Any) -> list[dict[str, Any]]:
    """One dictionary per trajectory: texts, score, and by token the policy's mask, its characters, log-probs, advantage
    and version."""
    columns, others = batch.batch, batch.non_tensor_batch
    prompts, responses, mask = (columns[name].numpy() for name in ("prompts", "responses", "response_mask"))
    prompts_there, responses_there = np.split(columns["attention_mask"].bool().numpy(), [prompts.shape[1]], axis=1)
    scores = columns["token_level_scores"].sum(-1).tolist()
    rounded = {  # because these files are read by people and grow with every token
        name: columns[name].double().numpy().round(4) for name in ("rollout_log_probs", "advantages") if name in columns
    }
    if "old_log_probs" in columns and "rollout_log_probs" in columns:
        gap = (columns["old_log_probs"] - columns["rollout_log_probs"]) * columns["response_mask"]
        if bool(gap.any()):
            rounded["log_prob_gap"] = gap.double().numpy().round(4)
    texts = TokenTexts(tokenizer)
    rows = []
    for i in range(len(batch)):
        real = responses_there[i]
        row = {
            "uid": others["uid"][i],
            "sample": others["sample"][i],
            "data_source": others["data_source"][i],
            "prompt": tokenizer.decode(prompts[i][prompts_there[i]]),
            "response": tokenizer.decode(responses[i][real]),
            "ground_truth": (others["reward_model"][i] or {}).get("ground_truth"),
            "turns": others["num_turns"][i],
            "finish_reason": others["finish_reason"][i],
            "policy_version": others["policy_version"][i],
            "score": scores[i],
            "reward_info": others["reward_info"][i],
            "response_mask": mask[i][real].tolist(),
        }
        if (ends := texts.lengths(responses[i][real], row["response"])) is not None:
            row["token_lengths"] = ends
        if VERSIONS in columns:
            row[VERSIONS] = columns[VERSIONS][i].numpy()[real].tolist()  # of the weights that sampled each token
        if AUGMENTED in others and others[AUGMENTED][i] is not None:
            row[AUGMENTED] = others[AUGMENTED][i]  # the prompt was proposed while training, and by whom
        rows.append(row | {name: values[i][real].tolist() for name, values in rounded.items()})
    return rows


class TokenTexts:
    """How many characters of a text each of its tokens stands for, at a look-up per token."""

    def __init__(self, tokenizer: Any):
        self._tokenizer = tokenizer
        self._known: dict[int, str] = {}
        self._table = np.empty(0, np.int32)  # characters by token, or one of these two:
        self._unknown, self._unfinished = -1, -2

    def lengths(self, ids: np.ndarray, text: str) -> list[int] | None:
        """The last token of a split character has it, the others have 0. None where the tokenizer writes the same
        tokens differently in another place."""
        if (most := int(ids.max(initial=-1))) >= len(self._table):
            self._table = np.append(self._table, np.full(most + 1 - len(self._table), self._unknown, np.int32))
        for token in np.unique(ids[self._table[ids] == self._unknown]).tolist():
            piece = self._piece(token)
            self._table[token] = self._unfinished if UNFINISHED in piece else len(piece)
        found = self._table[ids]
        if (found == self._unfinished).any():
            return self._one_by_one(ids.tolist(), text)
        if len(found):
            found[0] = len(self._decode(ids[:1].tolist()))
        return found.tolist() if found.sum() == len(text) else None

    def _one_by_one(self, ids: list[int], text: str) -> list[int] | None:
        pieces: list[str] = []
        while len(pieces) < len(ids):
            begin = end = len(pieces)
            piece = self._piece(ids[begin]) if begin else self._decode(ids[:1])
            while piece.endswith(UNFINISHED) and end + 1 < min(len(ids), begin + LONGEST):
                end += 1
                piece = self._decode(ids[begin : end + 1])
            pieces += [""] * (end - begin) + [piece]
        return [len(piece) for piece in pieces] if "".join(pieces) == text else None

    def _piece(self, token: int) -> str:
        """Its text after another token: some decoders strip the space of the first one."""
        if token not in self._known:
            self._known[token] = self._decode([token, token])[len(self._decode([token])) :]
        return self._known[token]

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids))


def batch_metrics(batch: DataProto, config: PPOConfig, version: int) -> dict[str, float]:
    columns, others = batch.batch, batch.non_tensor_batch
    given = [info.get("acc") for info in others["reward_info"]]
    accuracy = [float(value) if isinstance(value, int | float) else math.nan for value in given]  # some may have none
    metrics = data_metrics(
        columns,
        max_prompt_length=config.data.start_limit,
        max_response_length=config.data.response_limit,
        accuracy=None if np.isnan(accuracy).all() else accuracy,
        num_turns=others["num_turns"].tolist(),
        tool_call_counts=others["num_tool_calls"].tolist(),
    )
    present = (lengths(columns)[1] > 0).numpy()
    for name, function in config.custom_reward_function.functions.items():
        given = [info.get(name) for info in others["reward_info"]]  # rows that a reward model scores have none
        scored = present & [isinstance(value, int | float) for value in given]
        if scored.any():
            scores = np.array(given, dtype=object)[scored].astype(float)
            metrics[f"reward/{name}/mean"] = float(scores.mean())
            if groups := spread_within_groups(scores, others["uid"][scored]):
                metrics[f"reward/{name}/useful_ratio"], spread = groups
                metrics[f"reward/{name}/weighted_std"] = abs(function["weight"]) * spread
    if "entropys" in columns:  # else no pass computed it
        metrics["actor/entropy"] = float(columns["entropys"][columns["response_mask"].bool()].mean())
    metrics |= signal_metrics(columns, others["uid"]) | agent_metrics(others["agent_metrics"].tolist())
    return metrics | off_policy_metrics(batch, version, measured=not config.algorithm.rollout_correction.bypass_mode)


def speed_metrics(batch: DataProto, metrics: Mapping[str, float], processes: int) -> dict[str, float]:
    prompt, response = (int(part.sum()) for part in lengths(batch.batch))
    seconds = {name.split("/")[1]: value for name, value in metrics.items() if name.startswith("timing_s/")}
    tokens, generated = prompt + response, int(metrics["perf/generated_tokens"])
    return (
        timing_metrics(seconds, total_tokens=tokens, response_tokens=generated)
        | throughput_metrics(total_tokens=tokens, step_seconds=seconds["step"], n_devices=processes)
        | {"perf/host_memory_gb": resident_bytes() / 2**30}
    )


def resident_bytes() -> int:
    """Of this process, in memory now; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def agent_metrics(trajectories: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """What agent loops report of their trajectories: of each metric, over those that have it, the mean as `name`; of
    whole numbers `name/mean`, max and min. A metric without a group (`group/name`) is filed under `agent`."""
    values: dict[str, list[float]] = {}
    for metrics in trajectories:
        for name, given in metrics.items():
            value = unboxed(given)
            if name != "num_tool_calls" and isinstance(value, int | float):
                values.setdefault(name if "/" in name else f"agent/{name}", []).append(value)
    found: dict[str, float] = {}
    for name, numbers in values.items():
        mean = sum(numbers) / len(numbers)
        if all(isinstance(value, int) for value in numbers):
            found |= {f"{name}/mean": mean, f"{name}/max": float(max(numbers)), f"{name}/min": float(min(numbers))}
        else:
            found[name] = mean
    return found


def off_policy_metrics(batch: DataProto, version: int, *, measured: bool = True) -> dict[str, float]:
    """The ages of a batch's tokens, in versions of the weights: mean and maximum, the shares of trajectories with
    several and of tokens of each; with `old_log_probs` `measured` on the trained weights, k3 of KL(own ‖ trained)."""
    columns, gaps = batch.batch, None
    if VERSIONS not in columns or not bool(columns["response_mask"].any()):
        return {}
    sampled = columns["response_mask"].bool()  # (B, R)
    ages = version - columns[VERSIONS]
    of_tokens = ages[sampled]
    if measured and "old_log_probs" in columns and "rollout_log_probs" in columns:
        log_ratio = (columns["old_log_probs"] - columns["rollout_log_probs"]).clamp(-20, 20)
        gaps = log_ratio.exp() - 1 - log_ratio  # (B, R) k3
    oldest = ages.masked_fill(~sampled, -1).amax(-1)
    newest = ages.masked_fill(~sampled, int(of_tokens.max()) + 1).amin(-1)
    metrics = {
        "age_mean": float(of_tokens.float().mean()),
        "age_max": float(of_tokens.max()),
        "mixed_ratio": float((oldest > newest).sum() / sampled.any(-1).sum()),
    }
    for age in of_tokens.unique().tolist():
        chosen = sampled & (ages == age)
        metrics[f"tokens_{age}"] = float(chosen.sum()) / len(of_tokens)
        if gaps is not None:
            metrics[f"kl_{age}"] = float(gaps[chosen].mean())
    return {f"training/off_policy/{name}": value for name, value in metrics.items()}


class BadUpdates:
    """Updates that were NaN or infinite, so not applied: reported, and the end of a run with too many `in_a_row`."""

    def __init__(self, most: int, folder: Path, event: Callable[..., None]):
        self.most, self.folder, self.event = most, folder, event
        self.in_a_row = dict.fromkeys(("actor", "critic", "process_reward"), 0)

    def note(self, role: str, updates: Mapping[str, list[float]], step: int, metrics: dict[str, float]) -> None:
        """Add the metrics of a role's optimiser steps; BadStepError when too many in a row could not be applied."""
        bad = updates.get(f"{role}/bad_step", [])
        retries = metrics.get(OOM_RETRIES, 0) + sum(updates.get(OOM_RETRIES, []))
        metrics.update(reduce_metrics({name: values for name, values in updates.items() if name != f"{role}/bad_step"}))
        if retries:
            metrics[OOM_RETRIES] = retries
        if any(bad):
            count = int(sum(bad))
            metrics["failures/bad_steps"] = metrics.get("failures/bad_steps", 0) + count
            folders = [dump_folder(self.folder, step, role, i) for i, was_bad in enumerate(bad) if was_bad]
            dumps = [str(folder) for folder in folders if folder.is_dir()]  # only the first of a run are dumped
            self.event("bad_step", step=step, role=role, updates=count, dumps=dumps)
            log.warning("step %d: %d updates of the %s were NaN or infinite and not applied", step, count, role)
            for dump in dumps:
                log.warning("this update was dumped: `burnish replay %s` runs it again", dump)
        for was_bad in bad:
            self.in_a_row[role] = in_a_row = self.in_a_row[role] + 1 if was_bad else 0
            if in_a_row >= self.most:
                dumped = sorted((self.folder / DUMPS).glob(f"*_{role}_*"))
                look = f"`burnish replay {dumped[0]}` shows where it comes from. " if dumped else ""
                raise BadStepError(
                    f"{role}: loss or gradient was NaN or infinite in {in_a_row} updates in a row, up to step {step}. "
                    f"{look}Look at the rewards in {self.folder / 'rollouts' / f'{step}.jsonl'}, or lower the learning "
                    "rate"
                )
