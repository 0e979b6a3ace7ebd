"""`*.optim`: the optimiser of one model and its learning-rate schedule."""

from dataclasses import dataclass

from burnish.config.key import Keys, key

READER = "engine/optim.py"


@dataclass
class OptimConfig(Keys, reader=READER):
    """Optimiser and schedule."""

    optimizer: str = key("AdamW", "optimiser", choices=("AdamW",), spellings={"adamw": "AdamW"})
    lr: float = key(1e-6, "learning rate after the warm-up", low=0)
    betas: list[float] = key([0.9, 0.999], "decay rates of Adam's two moments")
    weight_decay: float = key(0.01, "decoupled weight decay", low=0)
    # A step of the schedule is a training step, one batch, however many updates it has.
    lr_warmup_steps: int = key(-1, "training steps of linear warm-up; -1: use lr_warmup_steps_ratio", low=-1)
    lr_warmup_steps_ratio: float = key(0.0, "share of training steps spent warming up", low=0, high=1)
    lr_scheduler_type: str = key("constant", "schedule after the warm-up", choices=("constant", "cosine"))
    min_lr_ratio: float = key(0.0, "final learning rate of the cosine schedule, as a share of lr", low=0, high=1)


@dataclass
class ClippedOptimConfig(OptimConfig):
    """Optimiser, schedule and gradient clip, for trainers that have one model."""

    grad_clip: float = key(1.0, "largest gradient norm; a larger gradient is scaled down", READER, above=0)
