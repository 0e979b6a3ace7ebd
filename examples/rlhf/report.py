"""What the three steps came to: `python3 examples/rlhf/report.py outputs/rlhf`."""

import sys
from pathlib import Path

from burnish.tracking.jsonl import read_metrics

ACCURACY = "val-core/burnish/arithmetic/acc/mean@1"


def main(folder: Path) -> None:
    *_, sft = read_metrics(folder / "sft")
    *_, rm = read_metrics(folder / "rm")
    ppo = read_metrics(folder / "ppo")
    validations = [(line["step"], line[ACCURACY]) for line in ppo if ACCURACY in line]
    rewards = [line["reward_model/score/mean"] for line in ppo if "reward_model/score/mean" in line]
    print(f"sft: loss {sft['train/loss']:.3f}")
    print(f"rm:  prefers the right answer in {rm['val/accuracy']:.1%} of the pairs that it was not trained on")
    print(f"ppo: mean reward {rewards[0]:.2f} at the first step, {rewards[-1]:.2f} at the last")
    print(
        "right answers to held-out questions: " + ", ".join(f"{value:.2f} after step {s}" for s, value in validations)
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
