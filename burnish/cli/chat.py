"""`burnish chat FOLDER`: talk to a model or checkpoint in the terminal. The flags; what talks is `burnish/serving`."""

from burnish.cli.arguments import Parser, add_model_flags, model_options, positive


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


def parser() -> Parser:
    found = Parser(
        "chat",
        "Talk to a model or checkpoint in the terminal; from a pipe, each line is a question.",
        'chat outputs/quickstart --system "Be brief."',
    )
    add_model_flags(found)
    found.add_argument("--system", metavar="TEXT", help="system message")
    found.add_argument(
        "--temperature", type=float, default=0.7, metavar="X", help="sampling temperature [0.7]; 0: greedy"
    )
    found.add_argument("--top-p", type=float, default=1.0, metavar="X", help="smallest set with this probability [1.0]")
    found.add_argument("--top-k", type=int, default=-1, metavar="N", help="most likely tokens sampled from [-1: all]")
    found.add_argument(
        "--min-p", type=float, default=0.0, metavar="X", help="share of the likeliest to be left out below"
    )
    found.add_argument(
        "--max-tokens", type=positive, metavar="N", help="tokens of one answer [what the context leaves]"
    )
    found.add_argument("--seed", type=int, metavar="N", help="the same answers each time [another one each time]")
    return found
