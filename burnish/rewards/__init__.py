"""Rewards: from a finished response to a score on its last token.

    contract.py     what crosses the boundaries: ScoreRequest, ScoreResult, FunctionSpec, and what a score may be
    scores/         one built-in scorer per file, no torch; equivalence/ and code_*.py are what some of them share
    routing.py      which scorer a data source has, its options, and whether a row holds what it reads
    signature.py    what a user's function takes, against what rows have
    function.py     loads and checks a user's function or class, and calls it
    process.py      the child process that runs them
    child.py        one such child as the parent sees it
    pool.py         several of them behind `await pool.score(request)`
    sandboxed.py    the same for scorers that run programs
    request.py      from a row and its trajectory to a request
    scoring.py      what a run uses: built from the configuration, scores one finished trajectory
    failures.py     the failure policy: which samples a step drops, and when it stops
    reference.py    does a row's own answer pass its own scorer? (`burnish data check`)
    managers/       put scores on tokens and print examples

Only managers/ imports torch.
"""
