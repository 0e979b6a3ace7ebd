"""`burnish data check FILE …` and `burnish data show FILE`: the flags and the output; `data/check.py` finds problems,
`rewards/reference.py` scores reference answers, `data/show.py` chooses and formats rows."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

from burnish.entry.arguments import FlagParser
from burnish.errors import ConfigError, ModelError


def check_parser() -> FlagParser:
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


def check(argv: list[str]) -> int:
    options = check_parser().parse_args(argv)
    if options.max_prompt_length is not None and options.tokenizer is None:
        raise ConfigError("--max-prompt-length counts tokens: give the model's --tokenizer too")
    if options.max_prompt_length is not None and options.max_prompt_length < 1:
        raise ConfigError(f"--max-prompt-length {options.max_prompt_length}: a prompt has at least 1 token")
    if options.json and not Path(options.json).expanduser().absolute().parent.is_dir():
        raise ConfigError(f"--json {options.json}: its folder does not exist; create it first")

    from burnish.data.check import CheckOptions, check_file
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
        renderer = load_renderer(options.tokenizer) if options.tokenizer else None
        for file in options.files:
            table = describe(file)
            with Progress(f"checking {file}", table.rows) as progress:
                report.files.append(check_file(table, asked, judge, renderer, progress.advance))
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


PROMPT = "prompt"


def show_parser() -> FlagParser:
    made = FlagParser(
        "data show",
        "Print rows in readable form; with a tokenizer, as the exact text that its chat template renders.",
        "data show train.parquet --rows 0:3 --tokenizer Qwen/Qwen2.5-0.5B-Instruct",
    )
    made.add_argument("file", metavar="FILE", help="parquet, json or jsonl (also .gz)")
    choice = made.add_mutually_exclusive_group()
    choice.add_argument("--rows", metavar="ROWS", help="5, or 0:3 (rows 0 to 2), or 0,7,9; counted from 0")
    choice.add_argument("--random", type=int, metavar="K", help="K random rows, chosen with --seed")
    made.add_argument("--seed", type=int, default=0, help="seed of --random [0]")
    where = "only rows with this value; may be repeated"
    made.add_argument("--where", action="append", default=[], metavar="COLUMN=VALUE", help=where)
    made.add_argument("--tokenizer", metavar="FOLDER_OR_ID", help="render the messages with its chat template")
    made.add_argument("--prompt-key", default=PROMPT, metavar="COLUMN", help="column with the prompts [prompt]")
    return made


def show(argv: list[str]) -> int:
    options = show_parser().parse_args(argv)
    if options.random is not None and options.random < 1:
        raise ConfigError(f"--random {options.random}: ask for at least 1 row")

    from rich.console import Console
    from rich.text import Text

    from burnish.data.dataset import find_prompt_key
    from burnish.data.files import describe
    from burnish.data.show import Selection, parse_condition, parse_rows, print_blocks, row_blocks
    from burnish.literal import one_line

    spans = parse_rows(options.rows) if options.rows is not None else []
    conditions = [parse_condition(text) for text in options.where]
    table = describe(options.file)
    known = find_prompt_key(dict.fromkeys(table.columns, True), options.prompt_key) or "messages" in table.columns
    if not known and (options.tokenizer or options.prompt_key != PROMPT):
        table.require_column(options.prompt_key, "Name the one with the prompts in --prompt-key")
    chosen = Selection(spans, options.random, options.seed, conditions).rows(table)
    renderer = load_renderer(options.tokenizer) if options.tokenizer else None
    tokens = [str(token) for token in renderer.tokenizer.added_tokens_decoder.values()] if renderer else []
    console = Console()
    for number, row in chosen:
        console.print(Text(one_line(f"row {number} of {options.file}"), style="bold reverse"), soft_wrap=True)
        print_blocks(console, row_blocks(row, renderer, options.prompt_key), tokens)
        console.print()
    return 0
