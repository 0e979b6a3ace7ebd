"""`SFTConfig`: the whole configuration of `burnish sft`, supervised fine-tuning."""

from dataclasses import dataclass

from burnish.config.key import key, section
from burnish.config.supervised import RUN_READERS, SupervisedConfig, SupervisedDataConfig, SupervisedTrainerConfig

SFT = "trainer/sft.py"


@dataclass
class SFTDataConfig(SupervisedDataConfig, reader="data/sft.py"):
    """Conversations, or prompts with their responses."""

    messages_key: str = key("messages", "column with the conversation")
    prompt_key: str | None = key(None, "column with the prompt, instead of a conversation")
    response_key: str | None = key(None, "column with the response, with prompt_key")
    packing: bool = key(
        True,
        "pack examples up to micro_batch_size_per_gpu × max_length tokens per pass, instead of a fixed number",
        reader=SFT,
    )


@dataclass
class SFTConfig(SupervisedConfig):
    """Every setting of `burnish sft`."""

    data: SFTDataConfig = section(SFTDataConfig, readers={"micro_batch_size_per_gpu": SFT})
    trainer: SupervisedTrainerConfig = section(
        SupervisedTrainerConfig,
        readers=RUN_READERS,
        experiment_name="sft",  # so that an SFT run and the PPO run that follows it do not share a folder
    )

    @property
    def columns(self) -> dict[str, str]:
        """A conversation, or a prompt and its response."""
        data = self.data
        if data.prompt_key is None or data.response_key is None:
            return {"data.messages_key": data.messages_key}
        return {"data.prompt_key": data.prompt_key, "data.response_key": data.response_key}
