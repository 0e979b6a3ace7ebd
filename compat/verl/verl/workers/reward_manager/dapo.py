"""The naive manager under DAPO's name: the run itself adds the overlong penalty (`algorithm.overlong_buffer`)."""

from collections.abc import Callable
from typing import Any

from burnish.errors import ConfigError
from verl.workers.reward_manager.naive import NaiveRewardManager


class DAPORewardManager(NaiveRewardManager):
    def __init__(
        self,
        tokenizer: Any,
        num_examine: int,
        compute_score: Callable[..., Any] | None = None,
        reward_fn_key: str = "data_source",
        max_resp_len: int | None = None,
        overlong_buffer_cfg: Any = None,
    ):
        super().__init__(tokenizer, num_examine, compute_score, reward_fn_key)
        self.max_resp_len, self.overlong_buffer_cfg = max_resp_len, overlong_buffer_cfg
        if self.takes_results and getattr(overlong_buffer_cfg, "enable", False):
            raise ConfigError(
                "overlong_buffer_cfg.enable: the run adds this penalty, set algorithm.overlong_buffer.enable"
            )
