"""`burnish data show FILE`: the flags; `data/select.py` chooses the rows, `data/show.py` formats them."""

from burnish.entry.arguments import FlagParser
from burnish.errors import ConfigError

PROMPT = "prompt"


def parser() -> FlagParser:
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


def main(argv: list[str]) -> int:
    options = parser().parse_args(argv)
    if options.random is not None and options.random < 1:
        raise ConfigError(f"--random {options.random}: ask for at least 1 row")

    from rich.console import Console
    from rich.text import Text

    from burnish.cli.data_check import load_renderer
    from burnish.data.files import describe
    from burnish.data.row import find_prompt_key
    from burnish.data.show import Condition, Selection, parse_rows, print_blocks, row_blocks
    from burnish.literal import one_line

    spans = parse_rows(options.rows) if options.rows is not None else []
    conditions = [Condition.parse(text) for text in options.where]
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
