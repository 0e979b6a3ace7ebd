"""Trajectories with tools: calls that fail, actions that are none, loops that never end."""

from burnish.health.history import History, mean
from burnish.health.rule import WARNING, Finding, Rule

CALLS, TOOLS = "tools/calls", "tools/"
WRONG = ("tools/error", "tools/unknown_tool", "tools/bad_arguments", "tools/malformed")
VALID, TURNS, FAILED = "env/ratio_of_valid_action", "training/num_turns/mean", "failures/tool"
MULTI = "actor_rollout_ref.rollout.multi_turn"
STEPS = 10  # a policy that only begins to use tools fails more often


def failing(history: History) -> Finding | None:
    calls = _mean(history, CALLS)
    wrong = {name: _mean(history, name) for name in WRONG}
    if calls < 0.2 or sum(wrong.values()) < 0.5 * calls:
        return None
    worst = max(wrong, key=wrong.__getitem__)
    return Finding(
        WARNING,
        f"{sum(wrong.values()) / calls:.0%} of the tool calls of the last {STEPS} steps failed, most as "
        f"{worst.removeprefix('tools/')} ({wrong[worst]:.2g} a trajectory)",
        "see the calls and the tool's answers in rollouts/: the call format "
        f"({MULTI}.format), the tool's schema, or the tool itself",
    )


def invalid(history: History) -> Finding | None:
    valid = mean(history.recent(VALID, STEPS))
    if not valid < 0.3:
        return None
    return Finding(
        WARNING,
        f"{valid:.0%} of the turns of the last {STEPS} steps had a valid action (a search or an answer)",
        "show the format in the prompt, or train on some examples first (`burnish sft`)",
    )


def looping(history: History) -> Finding | None:
    most = history.key(f"{MULTI}.max_assistant_turns")
    turns = mean(history.recent(TURNS, STEPS))
    if not most or most < 2 or not turns >= 1 + 0.95 * (2 * most - 1):
        return None
    return Finding(
        WARNING,
        f"trajectories of the last {STEPS} steps have {turns:.1f} messages on average: nearly all use up "
        f"{MULTI}.max_assistant_turns={most}",
        f"a reward that pays only for finished answers, or more turns ({MULTI}.max_assistant_turns={2 * most})",
    )


def dropped(history: History) -> Finding | None:
    failed = mean(history.recent(FAILED, STEPS))
    rows = history.key("data.train_batch_size", 1) * history.key("actor_rollout_ref.rollout.n", 1)
    if not failed > 0.1 * rows:
        return None
    return Finding(
        WARNING,
        f"{failed / rows:.0%} of the trajectories of the last {STEPS} steps ended by a failure of a tool, an "
        "interaction or a retriever",
        "the first of them are in the log with their cause; `burnish status` shows calls that are late",
    )


def _mean(history: History, name: str) -> float:
    values = history.recent(name, STEPS)
    return mean(values) if values else 0.0


RULES = [
    Rule("tool_failures", "Most tool calls fail", "The policy learns from error messages.", (CALLS, *WRONG), failing),
    Rule("invalid_actions", "Turns have no valid action", "The agent does not use its format.", (VALID,), invalid),
    Rule("tool_loops", "Trajectories use up all their turns", "No answer is reached.", (TURNS,), looping),
    Rule(
        "trajectory_failures",
        "Trajectories end by failures of tools",
        "They are scored as they are.",
        (FAILED,),
        dropped,
    ),
]
