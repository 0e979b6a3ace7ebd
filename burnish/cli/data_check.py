"""`burnish data check FILE …`: what is in data files, and what is wrong with them.

`data/check.py` finds problems, `rewards/reference.py` scores reference answers; here are the flags and the output. Exit
code 1 if there is a problem, 0 if there are at most warnings.
"""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

from burnish.entry.arguments import FlagParser
from burnish.errors import ConfigError, ModelError


def parser() -> FlagParser:
    made = FlagParser(
        "data check",
        "What is in data files, and what is wrong with them. Exit code 1 if there are problems.",
        "data check train.parquet test.parquet --tokenizer Qwen/Qwen2.5-0.5B-Instruct --max-prompt-length 512",
    )
    add = made.add_argument
    add("files", nargs="+", metavar="FILE", help="parquet, json or jsonl (also .gz); compared pair by pair")
    add("--tokenizer", metavar="FOLDER_OR_ID", help="measure prompts in its tokens, rendered as in training")
    add("--max-prompt-length", type=int, metavar="N", help="report prompts of more than N tokens as problems")
    add("--reward", metavar="FILE.py[:NAME]", help="score reference answers with this function")
    add("--prompt-key", default="prompt", metavar="COLUMN", help="column with the prompts [prompt]")
    scorer = "column that chooses the scorer [data_source]"
    add("--reward-fn-key", default="data_source", metavar="COLUMN", help=scorer)
    add("--json", metavar="FILE", help="write all findings, with all rows, to this file")
    return made


def main(argv: list[str]) -> int:
    options = parser().parse_args(argv)
    if options.max_prompt_length is not None and options.tokenizer is None:
        raise ConfigError("--max-prompt-length counts tokens: give the model's --tokenizer too")
    if options.max_prompt_length is not None and options.max_prompt_length < 1:
        raise ConfigError(f"--max-prompt-length {options.max_prompt_length}: a prompt has at least 1 token")
    if options.json and not Path(options.json).expanduser().absolute().parent.is_dir():
        raise ConfigError(f"--json {options.json}: its folder does not exist; create it first")

    from burnish.data.check import CheckOptions, Measure, check_file
    from burnish.data.files import describe, locate
    from burnish.data.report import CheckReport, print_report
    from burnish.rewards.reference import References
    from burnish.tracking.disk import write_atomically
    from burnish.tracking.progress import Progress

    for file in options.files:
        locate(file)
    asked = CheckOptions(options.prompt_key, options.reward_fn_key, options.max_prompt_length)
    report = CheckReport()
    with closing(References.by(options.reward, options.reward_fn_key)) as judge:
        measure = Measure(load_renderer(options.tokenizer) if options.tokenizer else None)
        for file in options.files:
            table = describe(file)
            with Progress(f"checking {file}", table.rows) as progress:
                report.files.append(check_file(table, asked, judge, measure, progress.advance))
    print_report(report)
    if options.json:
        write_atomically(Path(options.json).expanduser(), [json.dumps(report.to_dict()), "\n"], "--json")
    return 1 if report.problems() else 0


def load_renderer(tokenizer: str) -> Any:
    """The ChatRenderer that renders prompts as training does; ModelError if the tokenizer cannot be loaded."""
    from burnish.data.chat import ChatRenderer
    from burnish.models.loading import load_tokenizer

    try:
        return ChatRenderer(load_tokenizer(tokenizer))
    except ModelError as error:
        raise ModelError(f"--tokenizer {tokenizer}: {error}") from error
