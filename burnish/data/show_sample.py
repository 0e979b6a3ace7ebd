"""A sample of a run (`rollouts/<step>.jsonl`) as a person reads it, in the blocks of `data/show.py`: the prompt, the
response cut where the policy's own tokens end and begin, what it was scored against, and what it earned."""

from collections.abc import Mapping
from itertools import groupby
from typing import Any

from burnish.data.show import TextBlock
from burnish.literal import json_text

POLICY, MASKED = "policy", "masked: a tool, a document or the environment; not trained on"


def sample_heading(sample: Mapping[str, Any]) -> str:
    mask, advantages = _numbers(sample.get("response_mask")), _numbers(sample.get("advantages"))
    masked = f", {len(mask) - sum(map(bool, mask))} masked" if not all(mask) else ""
    trained = [value for value, is_own in zip(advantages, mask, strict=False) if is_own]
    facts = [
        f"step {sample.get('step')}", f"uid {sample.get('uid')}, sample {sample.get('sample')}",
        str(sample.get("data_source")),
        f"score {_short(sample.get('score'))}", f"advantage {_span(trained)}" if trained else "",
        f"{len(mask)} tokens{masked}", f"{sample['turns']} turns" if "turns" in sample else "",
        str(sample.get("finish_reason") or ""),
    ]  # fmt: skip
    return " · ".join(fact for fact in facts if fact)


def sample_blocks(sample: Mapping[str, Any]) -> list[TextBlock]:
    info = sample.get("reward_info")
    parts = ", ".join(f"{key} {_short(value)}" for key, value in info.items()) if isinstance(info, Mapping) else ""
    return [
        TextBlock("prompt", str(sample.get("prompt")), "bold green"),
        *_response(sample),
        TextBlock("ground truth", _short(sample.get("ground_truth")), below=False),
        *([TextBlock("reward parts", parts, below=False)] if parts else []),
    ]


def _response(sample: Mapping[str, Any]) -> list[TextBlock]:
    """The stretches of equal mask, where the file has the characters of each token (`token_lengths`)."""
    text, mask = str(sample.get("response")), _numbers(sample.get("response_mask"))
    lengths, advantages = _numbers(sample.get("token_lengths")), _numbers(sample.get("advantages"))
    if all(mask) or len(lengths) != len(mask) or sum(lengths) != len(text):
        return [TextBlock("response", text, "bold yellow")]
    blocks, begin, turn = list[TextBlock](), 0, 0
    for is_own, stretch in groupby(range(len(mask)), key=lambda place: bool(mask[place])):
        places = list(stretch)
        end, turn = begin + int(sum(lengths[place] for place in places)), turn + is_own
        heading = f"{POLICY}, turn {turn}" if is_own else MASKED
        own = [advantages[place] for place in places] if is_own and len(advantages) == len(mask) else []
        heading += f" ({len(places)} token{'s' * (len(places) > 1)}{f', advantage {_span(own)}' if own else ''})"
        blocks.append(TextBlock(heading, text[begin:end], "bold yellow" if is_own else "dim"))
        begin = end
    return blocks


def _span(values: list[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"


def _numbers(values: Any) -> list[float]:
    """Empty where another program wrote something else; texts are NaN and infinities."""
    try:
        return [value if isinstance(value, int) else float(value) for value in values]
    except (TypeError, ValueError):
        return []


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else json_text(value)
