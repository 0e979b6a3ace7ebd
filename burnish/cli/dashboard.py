"""`burnish dashboard [FOLDER …]`: the flags; the work is `burnish/dashboard/server.py`."""

from burnish.entry.arguments import FlagParser, add_address, add_key, check_address, need_packages, read_key

KEY_VARIABLE = "BURNISH_API_KEY"


def main(argv: list[str]) -> int:
    flags = parser().parse_args(argv)
    check_address(flags)
    key = read_key(flags.api_key, KEY_VARIABLE)
    need_packages("burnish dashboard", "dashboard", "plotly")
    from burnish.dashboard.server import serve

    return serve(flags.folders, flags.host, flags.port, key)


def parser() -> FlagParser:
    made = FlagParser(
        "dashboard",
        "A local web page over run folders, while runs go on and afterwards: curves, times, trajectories, settings.",
        "dashboard outputs",
    )
    made.add_argument("folders", nargs="*", default=["outputs"], metavar="FOLDER", help="searched for runs [outputs]")
    add_address(made, 8080)
    add_key(made, KEY_VARIABLE)
    return made
