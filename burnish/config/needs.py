"""`Needs`: what an estimator or a loss asks of the run. Algorithms declare it; finalise, setup and workers read it."""

from dataclasses import dataclass, fields

OUTPUTS = ("log_prob", "entropy", "sum_pi_squared")  # what a pass gives per response token, as engine/forward.py has it


@dataclass(frozen=True)
class Needs:
    """What has to be there for an algorithm to run, and what may be left out."""

    critic: bool = False  # values of a value model
    groups: bool = False  # several samples of each prompt
    greedy_baseline: bool = False  # the score of one greedy answer to each prompt
    reward_components: bool = False  # the named parts of a reward, `algorithm.gdpo_reward_keys`
    process_reward: bool = False  # a reward per token from a model that is trained along
    outputs: tuple[str, ...] = ()  # some of OUTPUTS: of the log-prob pass, or for a loss of the update's
    ratio: bool = False  # a loss that weighs tokens by their ratio to the policy that sampled them
    skips_zero_advantage: bool = False  # a loss without gradient in rows whose advantages are all 0

    def __or__(self, other: "Needs") -> "Needs":
        either = {item.name: getattr(self, item.name) or getattr(other, item.name) for item in fields(self)}
        return Needs(**either | {"outputs": tuple(dict.fromkeys((*self.outputs, *other.outputs)))})
