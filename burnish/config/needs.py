"""`Needs`: what an estimator or a loss asks of the run. Algorithms declare it; finalise, setup and workers read it."""

from dataclasses import dataclass

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
        """What both ask for."""
        return Needs(
            self.critic or other.critic,
            self.groups or other.groups,
            self.greedy_baseline or other.greedy_baseline,
            self.reward_components or other.reward_components,
            self.process_reward or other.process_reward,
            tuple(dict.fromkeys((*self.outputs, *other.outputs))),
            self.ratio or other.ratio,
            self.skips_zero_advantage or other.skips_zero_advantage,
        )
