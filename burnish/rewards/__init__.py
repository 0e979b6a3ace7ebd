"""Rewards: from a finished response to a score on its last token.

    contract.py   what crosses the boundaries: ScoreRequest, ScoreResult, FunctionSpec, and what a score may be
    scores/       one built-in scorer per file, no torch
    routing.py    which scorer a data source has, and whether a row holds what that scorer reads
    function.py   checks that a scoring function can be called, and calls it
    process.py    the child process that runs user functions
    child.py      one such child as the parent sees it
    pool.py       several of them behind `await pool.score(request)`
    scoring.py    what a run uses: built from the configuration, scores one finished trajectory
    failures.py   the failure policy: which samples a step drops, and when it stops
    managers/     put scores on tokens and print examples

Only managers/ imports torch.
"""
