"""Runs on several workers give the metrics of one process, whatever is trained and however it is spread.

What differs by nature, and how near the rest must be, is said once: DIFFERS_BY_NATURE, RELATIVE and ABSOLUTE in
conftest.py. In every case gradients flow: a run that learns nothing would be the same anywhere.
"""

from pathlib import Path

import pytest

from burnish.data.files import write_parquet
from burnish.data.tasks import arithmetic
from burnish.models.tiny import write_tiny_model
from tests.search.conftest import Words, serving
from tests.trainer.cluster.conftest import LONG, differences, lines_of
from tests.trainer.conftest import GRPO, events, rollouts, write_judge
from tests.trainer.scripted import question

ACTOR = "actor_rollout_ref.actor"
FSDP, LOSS, FILTER = f"{ACTOR}.fsdp_config", f"{ACTOR}.policy_loss", "algorithm.filter_groups"
HYBRID, ULYSSES = f"{FSDP}.fsdp_size=2", f"{ACTOR}.ulysses_sequence_parallel_size=2"
TWO, THREE = "trainer.total_training_steps=2", "trainer.total_training_steps=3"
PPO = ["algorithm.adv_estimator=gae", "critic.optim.lr=1e-3", "algorithm.use_kl_in_reward=true",
       "algorithm.kl_ctrl.kl_coef=0.01"]  # fmt: skip
LORA = ["actor_rollout_ref.model.lora_rank=4", f"{ACTOR}.use_kl_loss=true"]
PASSES = ["data.train_batch_size=6", f"{ACTOR}.ppo_mini_batch_size=2", f"{ACTOR}.ppo_epochs=2", f"{ACTOR}.shuffle=true",
          f"{ACTOR}.ppo_micro_batch_size_per_gpu=2", f"{ACTOR}.use_dynamic_bsz=false"]  # fmt: skip
# 12 rows by five: the last batch has two prompts.
UNEVEN = ["data.train_batch_size=5", f"{ACTOR}.ppo_mini_batch_size=5"]
# One prompt with three samples: of four workers one has no row at all.
FEWER_ROWS_THAN_WORKERS = ["data.train_batch_size=1", f"{ACTOR}.ppo_mini_batch_size=1"]
POOLS = "trainer.resource_pools={main:[2],judge:[1],roles:{critic:judge,reward_model:judge}}"


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    folder = tmp_path_factory.mktemp("judge")
    language_model = write_tiny_model(folder / "lm", hidden_size=16, layers=1, seed=9)
    return write_judge(language_model, folder / "rm")


@pytest.fixture
def judged(judge, run):
    """The keys of a reward model; rows ask for rule, model and both in turn."""
    rows = arithmetic.rows("train", 12, seed=0)
    for i, row in enumerate(rows):
        row["reward_model"]["style"] = ("rule", "model", "both")[i % 3]
    write_parquet(rows, "train.parquet")
    return ["reward_model.enable=true", f"reward_model.model.path={judge}"]


@pytest.fixture
def same(run):
    """Train in one process and on each of these numbers of workers; returns the metrics, which were the same."""

    def check(workers, *overrides, trains=("actor",), only_there=()):
        run(0, *overrides, "trainer.default_local_dir=one")
        expected = lines_of("one")
        for role in trains:
            flows = [line.get(f"{role}/grad_norm") for line in expected]
            assert any(isinstance(norm, float) and norm > 1e-4 for norm in flows), f"{role} learns nothing: {flows}"
        for count in workers:
            run(count, *overrides, *only_there, f"trainer.default_local_dir=on-{count}")
            assert not differences(expected, lines_of(f"on-{count}")), f"on {count} workers"
        return expected

    return check


@pytest.mark.parametrize(
    "executor", ["processes", pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.slow])], indirect=True
)
def test_grpo_on_two(same):
    same([2], *GRPO, *UNEVEN, "data.val_files=test.parquet", "trainer.test_freq=2")


def test_ppo_with_critic_reference_and_reward_model_on_two(same, judged):
    lines = same([2], *PPO, *judged, TWO, trains=("actor", "critic"))
    assert "reward_model/score/mean" in lines[0] and "actor/reward_kl_penalty" in lines[0]


def test_generation_that_runs_ahead(run):
    """Not the same figures, which depend on how long things take: the same prompts, each once, and none too old."""
    ahead = ["trainer.async_rollout.enable=true", "trainer.async_rollout.staleness=2"]
    run(2, *GRPO, *ahead, "data.val_files=null", "trainer.total_epochs=2", "trainer.default_local_dir=run")
    lines = lines_of("run")
    for step, line in enumerate(lines):
        seen = [(row["uid"], row["sample"]) for row in rollouts(step + 1)]
        assert seen == [(4 * step + i // 3, i % 3) for i in range(12)]
        assert line["training/off_policy/age_max"] <= 2 and abs(line.get("training/off_policy/kl_0", 0.0)) < 1e-6
    assert len(lines) == 6 and max(line["training/off_policy/age_max"] for line in lines) > 0


CASES = {
    "grpo": ([1, 4], [*GRPO, "trainer.total_epochs=2"], []),
    "a last batch that does not divide": ([4], [*GRPO, *UNEVEN], []),
    "fewer rows than workers": ([2, 4], [*GRPO, *FEWER_ROWS_THAN_WORKERS, THREE], []),
    "several mini-batches and epochs": ([2, 4], [*GRPO, *PASSES], []),
    "lora": ([1, 2, 4], [*GRPO, *LORA, TWO], []),
    "ulysses": ([2, 4], [*GRPO, *UNEVEN], [ULYSSES]),
    "hybrid sharding": ([4], [*GRPO, TWO, HYBRID], []),
    "replicas that share nothing": ([2], [*GRPO, TWO, f"{FSDP}.fsdp_size=1"], []),
    "ulysses and hybrid sharding": ([4], [*GRPO, *PASSES, TWO], [HYBRID, ULYSSES]),
    "in host memory": ([2], [*GRPO, TWO], [f"{FSDP}.param_offload=true", f"{FSDP}.optimizer_offload=true"]),
    "FSDP2's own offload": ([2], [*GRPO, TWO], [f"{FSDP}.offload_policy=true"]),
    "weights that stay gathered": ([2], [*GRPO, TWO], [f"{FSDP}.reshard_after_forward=false"]),
    "weights gathered ahead": ([2], [*GRPO, TWO], [f"{FSDP}.forward_prefetch=true"]),
    "rows dealt by number": ([2], [*GRPO, *UNEVEN], ["trainer.balance_batch=false"]),
    "clip_cov": ([2, 4], [*GRPO, *PASSES, f"{LOSS}.loss_mode=clip_cov", f"{LOSS}.clip_cov_ratio=0.2"], []),
    "kl_cov": ([2], [*GRPO, *PASSES, TWO, f"{LOSS}.loss_mode=kl_cov"], []),
    "sequences weighed as a whole": ([2], [*GRPO, *PASSES, f"{LOSS}.loss_mode=gspo"], []),
    "entropy and a KL loss": ([2], [*GRPO, TWO, f"{ACTOR}.entropy_coeff=0.01", f"{ACTOR}.use_kl_loss=true"], []),
    "recomputed activations": ([2], [*GRPO, TWO, "actor_rollout_ref.model.enable_gradient_checkpointing=true"], []),
    "a greedy baseline": ([2], ["algorithm.adv_estimator=remax", TWO], []),
    "dynamic sampling": ([2], [*GRPO, TWO, f"{FILTER}.enable=true", f"{FILTER}.metric=score"], []),
    "several agent workers": ([2], [*GRPO, *UNEVEN], ["actor_rollout_ref.rollout.agent.num_workers=3"]),
}


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize(("workers", "keys", "on_ray"), CASES.values(), ids=CASES)
def test_the_metrics_are_those_of_one_process(same, workers, keys, on_ray):
    same(workers, *keys, only_there=on_ray)


class TestLong:
    pytestmark = LONG

    @pytest.mark.parametrize("keys", [[], PASSES, UNEVEN], ids=["plain", "passes", "uneven"])
    def test_ppo_with_critic_reference_and_reward_model(self, same, judged, keys):
        same([1, 4], *PPO, *judged, *keys, TWO, trains=("actor", "critic"))

    def test_ppo_with_ulysses_and_hybrid_sharding_of_all_models(self, same, judged):
        spread = [HYBRID, ULYSSES, "critic.fsdp_config.fsdp_size=2",
                  "critic.ulysses_sequence_parallel_size=2", "reward_model.model.fsdp_config.fsdp_size=2",
                  "actor_rollout_ref.ref.fsdp_config.param_offload=true"]  # fmt: skip
        same([4], *PPO, *judged, TWO, trains=("actor", "critic"), only_there=spread)

    def test_pools_of_their_own_for_critic_and_reward_model(self, run, judged):
        run(0, *PPO, *judged, TWO, "trainer.default_local_dir=one")
        run(2, *PPO, *judged, TWO, POOLS, "trainer.default_local_dir=pools")
        assert not differences(lines_of("one"), lines_of("pools"))

    def test_prime(self, same, reward):
        reward("return float(len(set(solution_str)) % 2)")
        keys = ["algorithm.adv_estimator=prime", "actor_rollout_ref.rollout.n=3", "process_reward.optim.lr=1e-3"]
        same([2, 4], *keys, *UNEVEN, trains=("actor", "process_reward"))

    def test_an_agent_of_several_turns(self, same, tmp_path):
        """A random model's turns are no valid actions: it is told so, and has another turn."""
        roomy = write_tiny_model(tmp_path / "roomy", context=4096)
        write_parquet([question(f"Who wrote Faust? {i}") for i in range(8)], "train.parquet")
        with serving(Words()) as library:
            lines = same(
                [2], *GRPO, "do_search=true", "max_turns=2", f"retriever.url={library.url}/retrieve", TWO,
                "data.max_start_length=60", "data.max_prompt_length=1000", "data.max_response_length=8",
                f"actor_rollout_ref.model.path={roomy}",
                only_there=["actor_rollout_ref.rollout.agent.num_workers=2"],
            )  # fmt: skip
        assert lines[0]["env/number_of_actions/min"] == 3

    def test_updates_that_are_nan_get_the_same_treatment(self, same):
        """NaN in the rows of one worker: none applies the update, and it is dumped as one process dumps it."""
        Path("mine.py").write_text(
            "from burnish.algorithms.losses.vanilla import vanilla\n"
            "def mine(inputs):\n"
            "    loss, metrics = vanilla(inputs)\n"
            "    return loss * (float('nan') if (inputs.advantages > 1.1).any() else 1.0), metrics\n"
        )
        mine = [f"{ACTOR}.policy_loss.loss_mode=mine.py:mine", "trainer.max_bad_steps=100", "trainer.total_epochs=2"]
        lines = same([2, 4], *GRPO, *mine, f"{ACTOR}.ppo_mini_batch_size=1", trains=())  # means are NaN then
        bad = sum(line.get("failures/bad_steps", 0) for line in lines)
        assert 0 < bad < 4 * len(lines), "some updates are NaN and some are not"
        told = [[(event["step"], event["updates"], len(event["dumps"])) for event in events("bad_step", folder)]
                for folder in ("one", "on-2", "on-4")]  # fmt: skip
        assert told[0] == told[1] == told[2]
        dumped = [sorted(path.name for path in Path(run).glob("bad_steps/*")) for run in ("one", "on-2", "on-4")]
        assert dumped[0] == dumped[1] == dumped[2]

    def test_samples_are_the_same_token_by_token(self, same):
        same([2, 4], *GRPO, *UNEVEN)
        for step in (1, 2, 3):
            one, two, four = (rollouts(step, run) for run in ("one", "on-2", "on-4"))
            for name in ("uid", "sample", "prompt", "response", "score"):
                assert [row[name] for row in one] == [row[name] for row in two] == [row[name] for row in four], name
