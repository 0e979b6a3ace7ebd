"""Loops, tools and interactions that import only `verl` run as they are, with the results of the built-in ones."""

import json
from pathlib import Path

import pytest
import yaml

from burnish.agents.runner import TrajectoryRunner
from burnish.agents.tools.base import BaseTool, ToolError, ToolResponse
from burnish.cli.main import main
from burnish.cli.quickstart_agents import NANO_AGENT
from burnish.config import PPOConfig
from burnish.data.files import write_parquet
from burnish.data.tasks import calculator
from burnish.errors import ConfigError
from burnish.rollout.base import Sampling
from burnish.tracking.jsonl import read_metrics
from burnish.user_code import load_target
from burnish.workers.rollouts import agent_settings
from tests.agents.conftest import WritingEngine, observed_text
from tests.agents.test_chat_turns import CHATML, marked
from tests.search.conftest import Words, serving

FILES = Path(__file__).parent / "user_files"
GUESS = {
    "name": "guess",
    "description": "Guess the number.",
    "parameters": {
        "type": "object",
        "properties": {"number": {"type": "integer", "description": "Your guess", "minimum": -9}},
        "required": ["number"],
    },
}
TOOL = {"class_name": f"{FILES}/tool.py:GuessTool", "config": {"type": "native", "praise": "friend"}}
TOOL["tool_schema"] = {"type": "function", "function": GUESS}
SECRET = {"guess": {"create_kwargs": {"secret": 4}}}


class NativeGuess(BaseTool):
    """user_files/tool.py as one would write it for burnish."""

    def __init__(self, config, tool_schema):
        super().__init__(config, tool_schema)
        self.secrets, self.counts, self.rewards = {}, {}, {}

    async def create(self, instance_id, secret):
        self.secrets[instance_id], self.counts[instance_id], self.rewards[instance_id] = secret, 0, 0.0

    async def execute(self, instance_id, parameters, **kwargs):
        if parameters["number"] < 0:
            raise ToolError("Error when executing tool: a guess is not negative")
        right = parameters["number"] == self.secrets[instance_id]
        self.counts[instance_id] += 1
        self.rewards[instance_id] = float(right)
        text = f"{'right' if right else 'wrong'}, {self.config['praise']}"
        return ToolResponse(text), float(right), {"guesses": self.counts[instance_id]}

    async def calc_reward(self, instance_id, **kwargs):
        return self.rewards[instance_id]


def call(name, **arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


GUESSES = [f"let me see {call('guess', number=3)}", call("guess", number=-1), call("guess", number=4), "it is 4"]


@pytest.fixture
def agent(tmp_path):
    """`agent(turns, …)` → (trajectory, runner) of a policy that writes these turns, with these entries in the files of
    tools, loops and interactions."""
    runners = []

    def run(
        turns, *, name="tool_agent", tools=None, functions=None, loops=None, interactions=None, template=CHATML, **row
    ):
        config = PPOConfig()
        rollout, data = config.actor_rollout_ref.rollout, config.data
        data.max_prompt_length = rollout.prompt_length = 2000
        data.max_response_length = rollout.response_length = row.pop("response_length", 1000)
        files = {"tools": tools, "loops": loops, "interactions": interactions}
        for kind, entries in files.items():
            key = {"tools": "tools", "interactions": "interaction"}.get(kind)
            (tmp_path / kind).write_text(yaml.safe_dump({key: entries} if key else entries))
        rollout.multi_turn.tool_config_path = str(tmp_path / "tools") if tools else None
        rollout.multi_turn.function_tool_path = functions
        rollout.multi_turn.interaction_config_path = str(tmp_path / "interactions") if interactions else None
        rollout.agent.agent_loop_config_path = str(tmp_path / "loops") if loops else None
        tokenizer = marked(template)
        runner = TrajectoryRunner(WritingEngine(tokenizer, {(0, 0): turns}), tokenizer, agent_settings(config))
        runners.append(runner)
        prompt = [{"role": "system", "content": "guess"}, {"role": "user", "content": "go"}]
        row = {"uid": 0, "sample": 0, "raw_prompt": prompt, "agent_name": name, **row}
        (found,) = runner.run([row], Sampling(), namespace="train", seed=7)
        return found, runner

    yield run
    for runner in runners:
        runner.close()


def tokens(found):
    output = found.output
    return output.prompt_ids, output.response_ids, output.response_mask, output.response_logprobs


@pytest.mark.parametrize(
    "file, cls, built_in",
    [
        ("loop_0_6", "ChattyLoop", "single_turn_agent"),
        ("loop_0_7", "ToolLoop", "tool_agent"),
        ("loop_0_9", "GivenToolsLoop", "tool_agent"),
    ],
)
@pytest.mark.parametrize("length", [1000, 60])
def test_loops_of_three_generations_sample_what_the_built_in_ones_do(agent, file, cls, built_in, length):
    entry = {"name": file, "_target_": f"{FILES}/{file}.py:{cls}"} | ({"most_calls": 9} if built_in[0] == "t" else {})
    row = {"tools": [TOOL], "tools_kwargs": SECRET, "response_length": length}
    ours, _ = agent(GUESSES, name=built_in, **row)
    theirs, _ = agent(GUESSES, name=file, loops=[entry], **row)
    assert tokens(theirs) == tokens(ours)
    assert theirs.output.metrics["agent_loop/generate_sequences"] > 0


def test_what_loops_share_is_made_again_in_each_run(agent):
    """And a tokenizer without a chat template has burnish's plain one."""
    target = f"{FILES}/loop_0_6.py:ChattyLoop"
    for length in (30, 40):
        row = {"template": None, "response_length": length}
        ours, _ = agent(GUESSES, name="single_turn_agent", **row)
        theirs, _ = agent(GUESSES, name="loop_0_6", loops=[{"name": "loop_0_6", "_target_": target}], **row)
        assert tokens(theirs) == tokens(ours)
        assert load_target(target, "").response_length == length


def test_a_tool_has_an_instance_per_call_and_its_errors_are_shown(agent):
    native = TOOL | {"class_name": "tests.compat.test_verl_agents.NativeGuess"}
    ours, _ = agent(GUESSES, tools=[native], tools_kwargs=SECRET)
    theirs, runner = agent(GUESSES, tools=[TOOL], tools_kwargs=SECRET)
    assert tokens(theirs) == tokens(ours)
    assert theirs.output.extra_fields == ours.output.extra_fields
    assert theirs.output.extra_fields["turn_scores"] == [0.0, 0.0, 1.0, 0.0]
    assert theirs.output.extra_fields["tool_score"] == 1.0
    assert theirs.output.metrics["tools/guess/guesses"] == ours.output.metrics["tools/guess/guesses"] == 3
    assert "Error when executing tool: a guess is not negative" in observed_text(runner.tokenizer, theirs.output)
    tool = runner.environment.tools["guess"].tool
    assert tool.events == ["create", "execute", "release"] * 3 and not tool._instance_dict


def test_a_tool_may_describe_itself(agent):
    described = {"class_name": f"{FILES}/tool.py:SelfDescribedTool", "config": {"type": "native", "praise": "friend"}}
    ours, _ = agent(GUESSES, tools=[TOOL], tools_kwargs=SECRET)
    theirs, _ = agent(GUESSES, tools=[described], tools_kwargs=SECRET)
    assert tokens(theirs) == tokens(ours)


def test_functions_are_tools(agent):
    turns = [call("add", a=1, b=2), call("double", x=2.5), call("add", a=13, b=0), call("check", answer="42"), "done"]
    found, runner = agent(turns, functions=f"{FILES}/function_tools.py")
    seen = observed_text(runner.tokenizer, found.output)
    for text in ("\n3<", '{"doubled": 5.0}', "\nError when executing tool: not that one<", "\nnoted<"):
        assert text in seen
    assert found.output.extra_fields["turn_scores"] == [0.0, 0.0, 0.0, 1.0, 0.0]
    assert found.output.metrics["tools/check/checks"] == 1


def test_tools_and_interactions_of_verl_are_those_of_burnish(agent):
    """The classes that users' files name, with the keys of their `config`."""

    def entry(target, name, argument, **config):
        properties = {argument: {"type": "array" if argument.endswith("list") else "string"}}
        parameters = {"type": "object", "properties": properties, "required": [argument]}
        function = {"name": name, "description": "", "parameters": parameters}
        return {
            "class_name": f"verl.tools.{target}",
            "config": {"type": "native", **config},
            "tool_schema": {"type": "function", "function": function},
        }

    sandbox = {"sandbox_fusion_url": "http://127.0.0.1:9/run_code", "num_workers": 3, "default_timeout": 5}
    row = {"name": "gsm8k", "ground_truth": "72", "query": ""}
    gsm8k = {"name": "gsm8k", "class_name": "verl.interactions.gsm8k_interaction.Gsm8kInteraction", "config": {}}
    turns = [call("calc_gsm8k_reward", answer="72"), call("search", query_list=["Faust"]), "#### 71", "#### 72"]
    with serving(Words()) as library:
        tools = [
            entry("gsm8k_tool.Gsm8kTool", "calc_gsm8k_reward", "answer"),
            entry("search_tool.SearchTool", "search", "query_list", retrieval_service_url=f"{library.url}/retrieve"),
            entry("sandbox_fusion_tools.SandboxFusionTool", "code_interpreter", "code", **sandbox),
        ]
        kwargs = {"calc_gsm8k_reward": {"create_kwargs": {"ground_truth": "72"}}}
        found, runner = agent(
            turns, tools=tools, tools_kwargs=kwargs, interactions=[gsm8k], interaction_kwargs=row, response_length=2000
        )
        seen = observed_text(runner.tokenizer, found.output)
    assert "72 is right" in seen and "A play by Goethe." in seen and "Your answer is not right." in seen
    assert found.output.extra_fields["tool_score"] == found.output.extra_fields["interaction_score"] == 1.0
    interpreter = runner.environment.tools["code_interpreter"]
    assert (interpreter._sandbox.shown, interpreter._limits.seconds) == (sandbox["sandbox_fusion_url"], 5)


def test_an_interaction_is_given_the_row_and_may_leave_values_out(agent):
    teacher = {"class_name": f"{FILES}/interaction.py:TeacherInteraction", "config": {"hint": "Again:"}}
    row = {"name": "teacher", "query": "2+2?", "ground_truth": "4"}
    found, runner = agent(["3", "4"], interactions=[teacher], interaction_kwargs=row)
    assert "Again: 2+2?" in observed_text(runner.tokenizer, found.output)
    assert found.output.extra_fields["turn_scores"] == [0.0, 1.0]
    assert found.output.extra_fields["interaction_score"] == 0.5
    assert not runner.environment.interactions["teacher"].interaction._instance_dict


def test_keys_that_a_loop_does_not_take_are_refused_before_a_run(agent):
    entry = {"name": "strict", "_target_": f"{FILES}/loop_0_6.py:Strict"}
    with pytest.raises(ConfigError, match="Strict cannot be made with the keys of the entry: .*'most_calls'"):
        agent([], loops=[entry | {"most_calls": 1}])


def test_a_loop_trains_as_the_built_in_one_does(tmp_path, monkeypatch):
    """burnish's little agent model, which calls the calculator: by the tool agent, and by a loop for verl 0.9."""
    monkeypatch.chdir(tmp_path)
    rows = [{key: value for key, value in row.items() if key != "agent_name"} for row in calculator.rows("train", 4, 1)]
    write_parquet(rows, "train.parquet")
    Path("tools.yaml").write_text("tools: [{name: calculator}]")
    command = [
        "algorithm.adv_estimator=grpo",
        "data.train_files=train.parquet",
        "data.train_batch_size=4",
        "data.max_prompt_length=64",
        "data.max_response_length=96",
        "actor_rollout_ref.rollout.n=4",
        "actor_rollout_ref.rollout.temperature=0.3",  # all calls are well formed
        f"actor_rollout_ref.model.path={NANO_AGENT}",
        f"actor_rollout_ref.model.external_lib={FILES}/loop_0_9.py",
        "actor_rollout_ref.rollout.multi_turn.tool_config_path=tools.yaml",
        "trainer.total_training_steps=1",
        "trainer.device=cpu",
        "trainer.logger=jsonl",
    ]
    for loop in ("tool_agent", "loop_0_9"):
        chosen = f"actor_rollout_ref.rollout.agent.default_agent_loop={loop}"
        assert main(["ppo", *command, chosen, f"trainer.default_local_dir={loop}"]) == 0
    (ours,), (theirs,) = read_metrics("tool_agent"), read_metrics("loop_0_9")
    assert ours["tools/calls"] > 0 and ours["actor/grad_norm"] > 0 and theirs["agent_loop/generate_sequences"] > 0
    differ = ("timing", "perf/", "tool", "agent_loop/")  # clocks, and what each of the two counts itself
    assert all(theirs[name] == value for name, value in ours.items() if not name.startswith(differ))
