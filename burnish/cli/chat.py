"""`burnish chat FOLDER`: the flags; the work is `burnish/serving/terminal.py`."""

from burnish.cli.serve import add_model_flags, model_options
from burnish.entry.arguments import FlagParser, positive


def main(argv: list[str]) -> int:
    flags = parser().parse_args(argv)
    from burnish.rollout.base import Sampling
    from burnish.serving.terminal import chat

    sampling = Sampling(
        temperature=flags.temperature,
        top_p=flags.top_p,
        top_k=flags.top_k,
        min_p=flags.min_p,
        max_tokens=flags.max_tokens,
    )
    return chat(model_options(flags, max_num_seqs=1), sampling, flags.seed, flags.system)


def parser() -> FlagParser:
    found = FlagParser(
        "chat",
        "Chat with a model or checkpoint in the terminal; from a pipe, each line is a question.",
        'chat outputs/quickstart --system "Be brief."',
    )
    add_model_flags(found)
    add = found.add_argument
    add("--system", metavar="TEXT", help="system message")
    add("--temperature", type=float, default=0.7, metavar="X", help="sampling temperature [0.7]; 0: greedy")
    add("--top-p", type=float, default=1.0, metavar="X", help="smallest set with this probability [1.0]")
    add("--top-k", type=int, default=-1, metavar="N", help="sample from the N most likely tokens [-1: all]")
    add("--min-p", type=float, default=0.0, metavar="X", help="drop tokens below this share of the likeliest [0.0]")
    add("--max-tokens", type=positive, metavar="N", help="maximum tokens of one answer [the rest of the context]")
    add("--seed", type=int, metavar="N", help="seed, for the same answers each time [random]")
    return found
