"""The failure policy: which samples of a step are dropped, what is counted, and when the run stops.

A sample that could not be scored (after its retries), or whose trajectory a tool could not continue, is dropped and
counted, never given a silent 0. Where the estimator compares samples of one prompt, a group that lost samples stays
while two remain. `reward.on_error=zero` keeps samples that could not be scored, with score 0, and still counts them.
With dynamic sampling "step" means the generation round.
"""

import re
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from burnish.errors import RewardError
from burnish.rewards.contract import ScoreResult, shortened

SHOWN_CAUSES = 5


@dataclass(frozen=True)
class FailureReport:
    """What the policy did. `results` has one entry per sample of the step, with zeros filled in where asked for."""

    results: list[ScoreResult]
    failed: int
    of_tools: int  # failed ones whose trajectory never ended, because of a tool, a retriever or an interaction
    dropped_samples: int  # failed ones, and those whose group became too small
    dropped_groups: int
    causes: str = ""  # of the failures, as `describe_causes` words them

    def metrics(self) -> dict[str, float]:
        return {
            "failures/reward": float(self.failed - self.of_tools),
            **({"failures/tool": float(self.of_tools)} if self.of_tools else {}),
            "failures/dropped_samples": float(self.dropped_samples),
            "failures/dropped_groups": float(self.dropped_groups),
        }


def apply_policy(
    results: Sequence[ScoreResult],
    uids: Sequence[Hashable] | np.ndarray,
    needs_groups: bool,
    max_failure_ratio: float,
    on_error: str = "drop",
) -> tuple[np.ndarray, FailureReport]:
    """`keep` (B,) bool says which samples of a step to train on. RewardError: too many failed, or nothing is left."""
    if len(results) != len(uids):
        raise ValueError(f"{len(results)} results for {len(uids)} uids")
    failed = [(result, uid) for result, uid in zip(results, uids, strict=True) if result.error is not None]
    if too_many(len(failed), len(results), max_failure_ratio):
        raise _too_many_failed(failed, len(results), len(results), max_failure_ratio)
    causes, of_tools = describe_causes(results, uids), sum(result.of_tool for result in results)
    if on_error == "zero":
        results = [replace(r, score=0.0) if r.error is not None and not r.of_tool else r for r in results]
    keep = np.array([result.score is not None for result in results], dtype=bool)
    lost: set[Hashable] = set()
    if needs_groups:
        left = Counter(uid for uid, kept in zip(uids, keep, strict=True) if kept)
        hit = {uid for uid, kept in zip(uids, keep, strict=True) if not kept}
        lost = {uid for uid in hit if left[uid] < 2}
        keep &= np.array([uid not in lost for uid in uids], dtype=bool)
    if len(results) and not keep.any():
        raise RewardError(f"none of the {len(results)} samples of the step could be used\n{causes}")
    return keep, FailureReport(list(results), len(failed), of_tools, int((~keep).sum()), len(lost), causes)


def too_many(failed: int, total: int, max_failure_ratio: float) -> bool:
    """Whether `failed` of a step's `total` samples is more than the ratio allows."""
    return failed > max_failure_ratio * total + 1e-9


class FailureWatch:
    """Counts the failures of a step of `total` samples as they come in; a constant cost for each sample."""

    def __init__(self, total: int, max_failure_ratio: float):
        self.total, self.max_failure_ratio = total, max_failure_ratio
        self.scored = 0  # samples that were tried, with or without success
        self.failed: list[tuple[ScoreResult, Hashable]] = []

    def add(self, uid: Hashable, result: ScoreResult) -> None:
        """RewardError as soon as more samples have failed than the whole step may lose."""
        self.scored += 1
        if result.error is not None:
            self.failed.append((result, uid))
            if too_many(len(self.failed), self.total, self.max_failure_ratio):
                raise _too_many_failed(self.failed, self.scored, self.total, self.max_failure_ratio)


def _too_many_failed(
    failed: Sequence[tuple[ScoreResult, Hashable]], scored: int, total: int, max_failure_ratio: float
) -> RewardError:
    """What stops the run after `scored` of `total` samples."""
    so_far = f"stopped after scoring {scored} of {total} samples: {len(failed)} failed"
    at_the_end = f"{len(failed)} of {total} samples could not be scored"
    return RewardError(
        f"{so_far if scored < total else at_the_end}, more than reward.max_failure_ratio={max_failure_ratio:g} allows. "
        f"Fix what failed, or raise the ratio to continue without them\n{describe_causes(*zip(*failed, strict=True))}"
    )


def describe_causes(results: Sequence[ScoreResult], uids: Sequence[Hashable] | np.ndarray) -> str:
    """The distinct errors, most frequent first: how often, in which data sources, and of the first sample its uid, the
    index of its row, its error and the start of its response."""
    groups: dict[str, list[tuple[ScoreResult, Hashable]]] = {}
    for result, uid in zip(results, uids, strict=True):
        if result.error is not None:
            # The same for errors that differ only in the values their message shows, e.g. the key of a KeyError. Of a
            # traceback, the places and the exception's name say which cause it is.
            *frames, message = result.error.splitlines() or [""]
            name = message.partition(":")[0] if frames else re.sub(r"\d+|'[^']*'", "", message)
            groups.setdefault("\n".join([*frames, name]), []).append((result, uid))
    ordered = sorted(groups.values(), key=len, reverse=True)
    blocks = []
    for members in ordered[:SHOWN_CAUSES]:
        first, uid = members[0]
        sources = ", ".join(sorted({result.data_source or "?" for result, _ in members}))
        times = "once" if len(members) == 1 else f"{len(members)} times"
        index = "" if first.index is None else f", row index {shortened(str(first.index))}"
        lines = [*str(first.error).splitlines(), *([f"response: {first.response}"] if first.response else [])]
        text = "\n".join("    " + line for line in lines)
        blocks.append(f"  {times} (data_source {sources}; first uid {uid}{index}):\n{text}")
    if len(ordered) > SHOWN_CAUSES:
        blocks.append(f"  and {len(ordered) - SHOWN_CAUSES} other causes")
    return "\n".join(blocks)
