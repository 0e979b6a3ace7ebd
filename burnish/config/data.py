"""`data.*`: which rows are trained on, in which order, and how long their prompts and responses may be."""

from dataclasses import dataclass
from typing import Any

from burnish.config.key import Keys, key, section

ORDER, EXPERIENCE, VALIDATE = "data/order.py", "trainer/experience.py", "trainer/validate.py"
BATCHES = "config/rules/batch.py"
TRUNCATION = ("error", "left", "right", "middle")
ON_FULL = ("drop_oldest", "drop_new")


@dataclass
class CurriculumConfig(Keys, reader=ORDER):
    """Rows sorted into stages by a column; each stage is trained on before the next."""

    stages: list[Any] | None = key(None, "values of the column, in the order to train on")
    # Last, because from here on `key` in this class is the field and no longer the function.
    key: str | None = key(None, "column that says which stage a row belongs to")


@dataclass
class CustomClassConfig(Keys, reader="data/dataset.py"):
    """A user's own dataset class."""

    path: str | None = key(None, "Python file or module with the class", path=True)
    name: str | None = key(None, "name of the class in it")


@dataclass
class SamplerConfig(Keys, reader=ORDER):
    """A user's own order of rows."""

    class_path: str | None = key(None, "Python file or module with the class", path=True)
    class_name: str | None = key(None, "name of the class")


@dataclass
class AugmentConfig(Keys, reader="data/augment.py"):
    """Prompts that reward functions and agent loops add while training."""

    enable: bool = key(False, "train on the `new_prompts` they return", "trainer/augment.py")
    buffer_size: int = key(1024, "most prompts that wait in the buffer", low=1)
    share: float = key(0.5, "largest share of a batch's prompts that comes from the buffer", above=0, high=1)
    on_full: str = key("drop_oldest", "which prompt is dropped when the buffer is full", choices=ON_FULL)


@dataclass
class DataConfig(Keys, reader="data/dataset.py"):
    """Rows, their order, and the limits on their length."""

    train_files: list[str] = key(None, "training rows: parquet, json or jsonl; one or a list", path=True)
    val_files: list[str] = key(None, "validation rows; null: no validation", path=True)
    dataset_weights: list[float] | None = key(
        None, "share of each training file in the prompts drawn; null: as they come", ORDER
    )
    curriculum: CurriculumConfig = section(CurriculumConfig)
    prompt_key: str = key("prompt", "column with the prompt (a string or chat messages)")
    reward_fn_key: str = key("data_source", "column that picks the scorer of a row", "rewards/managers/__init__.py")
    max_prompt_length: int = key(512, "longest prompt, in tokens", "config/data.py", low=1)
    max_response_length: int = key(512, "longest response, in tokens", "config/rules/sampling.py", low=1)
    train_batch_size: int = key(1024, "prompts per training step", EXPERIENCE, low=1)
    gen_batch_size: int = key(None, "prompts drawn per generation round; null: train_batch_size", BATCHES, low=1)
    val_batch_size: int | None = key(None, "validation prompts generated at a time; null: all", VALIDATE, low=1)
    train_max_samples: int = key(-1, "training rows used; -1: all", low=-1)
    val_max_samples: int = key(-1, "validation rows used; -1: all", low=-1)
    shuffle: bool = key(True, "draw training rows in random order", ORDER)
    validation_shuffle: bool = key(False, "validate in random order", VALIDATE)
    seed: int = key(1, "seed of the order of rows", ORDER, low=0)
    filter_overlong_prompts: bool = key(False, "leave out rows whose prompt is over the limit")
    filter_overlong_prompts_workers: int | None = key(
        None, "processes that filter", inert="prompts are measured in this process"
    )
    dataloader_num_workers: int | None = key(
        None, "processes that load rows", inert="rows are held in memory; there is nothing to load"
    )
    truncation: str = key("error", "what to do with a prompt over the limit", choices=TRUNCATION)
    image_key: str = key("images", "column with images", "data/dataset.py", later="images in prompts")
    video_key: str = key("videos", "column with videos", "data/dataset.py", later="videos in prompts")
    custom_cls: CustomClassConfig = section(CustomClassConfig)
    sampler: SamplerConfig = section(SamplerConfig)
    augment: AugmentConfig = section(AugmentConfig)
    return_raw_chat: bool = key(
        False, "keep the chat messages in the batch", inert="the messages are always kept, as `raw_prompt`"
    )
    apply_chat_template_kwargs: dict[str, Any] = key({}, "arguments handed to the tokenizer's chat template")
    escape_special_tokens: bool = key(False, "make special tokens in messages ordinary text")
    max_start_length: int | None = key(
        None,
        "prompt tokens at most, where max_prompt_length + max_response_length is the context that the prompt, all "
        "turns (each at most max_response_length) and observations share; null: prompt and response have a limit each",
        "config/data.py",
        low=1,
    )
    max_obs_length: int | None = key(
        None,
        "longest result of one search, in tokens, including its tags; null: no limit",
        "agents/loops/search.py",
        low=1,
    )

    @property
    def start_limit(self) -> int:
        return min(self.max_start_length or self.max_prompt_length, self.max_prompt_length)

    @property
    def start_limit_key(self) -> str:
        return "data.max_prompt_length" if self.start_limit == self.max_prompt_length else "data.max_start_length"

    @property
    def response_limit_key(self) -> str:
        if self.start_limit == self.max_prompt_length:
            return "data.max_response_length"
        return "data.max_prompt_length + data.max_response_length - data.max_start_length"

    @property
    def response_limit(self) -> int:
        """Tokens of a whole response at most, with all its turns and observations."""
        return self.max_prompt_length + self.max_response_length - self.start_limit
