"""`EvalConfig`: the whole configuration of `burnish eval`, scores of a file of responses."""

from dataclasses import dataclass

from burnish.config.key import Keys, key, section
from burnish.config.reward import CustomRewardFunctionConfig, RewardConfig, RuleConfig

EVALUATION = "trainer/evaluation.py"


@dataclass
class EvalDataConfig(Keys, reader=EVALUATION):
    """The file of responses, and which column is which."""

    path: str = key(None, "rows with responses: parquet, json or jsonl (also gzipped)", path=True)
    prompt_key: str = key("prompt", "column with the prompt")
    response_key: str = key("responses", "column with the responses: a list of texts, or one")
    data_source_key: str = key("data_source", "column that chooses the scorer")
    reward_model_key: str = key("reward_model", "column with the ground truth: in an object as `ground_truth`, or bare")
    output_path: str | None = key(
        None, "JSON file for the metrics; null: <path without its extension>.eval.json", path=True
    )
    scored_path: str | None = key(
        None, "parquet file for the rows with the score of each response; null: none", path=True
    )


@dataclass
class EvalConfig:
    """Every setting of `burnish eval`."""

    data: EvalDataConfig = section(EvalDataConfig)
    custom_reward_function: CustomRewardFunctionConfig = section(CustomRewardFunctionConfig)
    reward_model: RuleConfig = section(RuleConfig)
    reward: RewardConfig = section(RewardConfig, readers={"on_error": EVALUATION, "max_failure_ratio": EVALUATION})
