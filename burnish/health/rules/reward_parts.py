"""One of several reward functions decides the advantages alone."""

from burnish.health.history import History, mean
from burnish.health.rule import WARNING, Finding, Rule

PREFIX, SPREAD, USEFUL = "reward/", "/weighted_std", "/useful_ratio"
STEPS, MOST, HEARD = 10, 0.95, 0.2  # share of the spread; share of groups in which a part that is hidden differs
FUNCTIONS = "custom_reward_function.functions"


def check(history: History) -> Finding | None:
    names = [name for name in history.key(FUNCTIONS, {}) if history.recent(f"{PREFIX}{name}{SPREAD}", STEPS)]
    spread = {name: mean(history.recent(f"{PREFIX}{name}{SPREAD}", STEPS)) for name in names}
    useful = {name: mean(history.recent(f"{PREFIX}{name}{USEFUL}", STEPS)) for name in names}
    weight = {name: history.key(f"{FUNCTIONS}.{name}.weight", 1.0) for name in names}
    first, total = max(names, key=spread.__getitem__, default=""), sum(spread.values())
    # A part whose weight is far lower is meant to count little.
    hidden = [name for name in names if name != first and 10 * abs(weight[name]) >= abs(weight[first])]
    hidden = [name for name in hidden if useful[name] >= HEARD and weight[name]]
    if not hidden or spread[first] < MOST * total or history.key("algorithm.adv_estimator") == "gdpo":
        return None  # gdpo compares each part by its own scale
    shares = ", ".join(f"{name} {spread[name] / total:.1%} (weight {weight[name]:g})" for name in names)
    other = max(hidden, key=spread.__getitem__)
    return Finding(
        WARNING,
        f"{first} decides alone which responses of a group are better: shares of the reward's spread over the last "
        f"{STEPS} steps are {shares}, though {other} differs in {useful[other]:.0%} of the groups",
        f"weights that suit the scales ({FUNCTIONS}.{first}.weight from {weight[first]:g} to "
        f"{weight[first] * spread[other] / spread[first]:.2g}), or a comparison of each part by itself "
        "(algorithm.adv_estimator=gdpo)",
    )


RULES = [
    Rule(
        "reward_part_dominates",
        "One part of a mixed reward decides alone",
        "Advantages compare the weighted sum. A part with a larger scale hides the others, and the policy learns that "
        "part only.",
        (PREFIX,),
        check,
    )
]
