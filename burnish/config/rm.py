"""`RMConfig`: the whole configuration of `burnish rm`, which trains a reward model on pairs of answers."""

from dataclasses import dataclass

from burnish.config.data import TRUNCATION
from burnish.config.key import key, section
from burnish.config.supervised import (
    DATA,
    LOOP,
    RUN_READERS,
    SupervisedConfig,
    SupervisedDataConfig,
    SupervisedTrainerConfig,
)

RM = "trainer/rm.py"


@dataclass
class RMDataConfig(SupervisedDataConfig, reader="data/preference.py"):
    """Two answers to a prompt, of which one was preferred; or two whole conversations."""

    # From the left, so that the answers stay: they are what is compared. `reward_model.max_length` cuts so too.
    truncation: str = key("left", "what to do with a longer conversation", reader=DATA, choices=TRUNCATION)
    train_batch_size: int = key(256, "pairs per optimiser step", reader=LOOP, low=1)
    micro_batch_size_per_gpu: int | None = key(
        None, "pairs per forward and backward pass; null: 16384 tokens at max_length", reader=RM, low=1
    )
    prompt_key: str = key("prompt", "column with the prompt (text or messages), for answers that are text")
    chosen_key: str = key("chosen", "column with the better answer: text or messages")
    rejected_key: str = key("rejected", "column with the worse answer: text or messages")
    margin_key: str | None = key(
        None, "column with a number: the margin by which the better answer's reward should be higher"
    )


@dataclass
class RMConfig(SupervisedConfig):
    """Every setting of `burnish rm`."""

    data: RMDataConfig = section(RMDataConfig)
    trainer: SupervisedTrainerConfig = section(
        SupervisedTrainerConfig,
        readers=RUN_READERS,
        experiment_name="rm",  # so that it shares no folder with the SFT run before it and the PPO run after it
    )

    @property
    def columns(self) -> dict[str, str]:
        """The two answers, and the margin where there is one. Conversations hold their prompt themselves."""
        data = self.data
        margin = {"data.margin_key": data.margin_key} if data.margin_key is not None else {}
        return {"data.chosen_key": data.chosen_key, "data.rejected_key": data.rejected_key} | margin
