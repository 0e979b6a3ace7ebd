"""docs/troubleshooting.md, from the rules and the situations they are tested with.

python -m tests.health.page > docs/troubleshooting.md
"""

from textwrap import fill

from burnish.health.rule import all_rules
from tests.health.test_rules import SITUATIONS, run

HEAD = """# Troubleshooting

`burnish ppo`, `sft` and `rm` read their own metrics. What they find is printed once, and again when it becomes worse;
it is in `events.jsonl` (`finding`), in `burnish status`, and in the verdict at the end of the run:

    burnish doctor outputs/burnish/run      # the same for a run that has ended, or runs elsewhere

| severity | meaning |
|---|---|
| `note` | worth knowing |
| `warning` | training suffers |
| `broken` | to train on is of no use; `burnish doctor` ends with exit code 1 |

A rule of yours: `@burnish.health.rule.register_rule("name", watches=("env/cheats",), symptom="…")` on a function that
takes the [history](../burnish/health/history.py) and returns a `Finding` or None, in a file that
`actor_rollout_ref.model.external_lib` names.

Each section is a symptom; the text in it is what the rule of this name prints, with the numbers of an example.
"""


def page() -> str:
    parts = [HEAD]
    for name, rule in all_rules().items():
        steps, change, *_ = SITUATIONS[name]
        found = run(steps, change).found[name].newest
        watched = ", ".join(f"`{metric}`" for metric in rule.watches)
        lines = [f"`{name}`, {found.severity}: {found.evidence}.", f"Try: {found.remedy}.", f"Watches {watched}."]
        wrapped = [
            fill(line, 120, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False) for line in lines
        ]
        parts.append("\n".join(["", f"## {rule.symptom}", fill(rule.meaning, 120), "", *wrapped, ""]))
    return "".join(parts)


if __name__ == "__main__":
    print(page(), end="")
