"""What every command does before it loads torch or a model: help with an example that can be typed, and refusals of
mistakes in one line with the fix."""

import gzip
import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from burnish.cli import data, quickstart, retriever, run_views, runs, serve
from burnish.cli.main import main
from burnish.data.files import write_parquet
from burnish.data.tasks import arithmetic
from burnish.errors import install_command
from burnish.export import command as export
from burnish.search import serve_command
from tests.search.small import write_corpus

PROGRAM = """
import json, sys
from burnish.cli.main import main
for words, code, heavy in json.loads(sys.argv[1]):
    if "--engine" in words:
        from burnish.rollout.hosted import spec
        spec.find_spec = lambda name: None
    try:
        ended = main(words)
    except SystemExit as end:
        ended = end.code
    found = sorted({"torch", "transformers", *heavy} & set(sys.modules))
    assert ended == code and not found, (words, ended, found)
"""
NEEDED = {
    "ppo": ["data.train_files=a.parquet", "actor_rollout_ref.model.path=m"],
    "sft": ["data.train_files=a.parquet", "model.path=m"],
    "rm": ["data.train_files=a.parquet", "model.path=m"],
    "generate": ["data.path=a.parquet", "data.output_path=o.parquet", "model.path=m"],
    "eval": ["data.path=a.parquet"],
}
MISTAKES = {
    ("sft", "data.trian_files=x"): "did you mean 'data.train_files'",
    ("sft", "data.prompt_key=question"): "data.prompt_key and data.response_key go together",
    ("rm", "data.rejected_key=chosen"): "data.chosen_key and data.rejected_key are both chosen",
    ("generate", "rollout.n=5"): "use data.n_samples",
    ("eval", "--fail-under=half"): "--fail-under half: must be a number",
    ("eval", "--fail-under"): "--fail-under: must be a number",
    ("ppo", "actor_rollout_ref.actor.strategy=megatron"): "not available yet: ",
    ("ppo", "algorithm.adv_estimator=gro"): "algorithm.adv_estimator=gro",
    ("ppo", "data.train_batch_size=10 actor_rollout_ref.actor.ppo_mini_batch_size=3"): (
        "data.train_batch_size=10 is not a multiple of"
    ),
}


def test_help_files_and_refusals_come_without_torch(tmp_path):
    """In one process; the commands that may load most come last."""
    train, test = (str(write_parquet(arithmetic.rows(s, 9), tmp_path / f"{s}.parquet")) for s in ("train", "test"))
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.yaml").write_text("")
    empty, nano = str(tmp_path), "burnish/models/nano"
    light, data = ["hydra"], ["hydra", "huggingface_hub"]
    lines = [
        (["status", str(tmp_path / "run")], 0, ["hydra", "numpy"]),
        (["--help"], 0, light),
        (["ppo", "--help"], 0, light),
        (["sft", "--help", "data"], 0, light),
        (["chat"], 2, light),
        (["pppo"], 2, light),
        (["replay", "--help"], 0, light),
        (["data", "--help"], 0, data),
        (["data", "make", "--help"], 0, data),
        (["data", "make", "gsm8k", "--help"], 0, data),
        (["data", "make", "gsm8k"], 2, data),
        (["retriever", "--help"], 0, ["faiss", "fastapi"]),
        (["retriever", "index"], 2, ["faiss", "fastapi"]),
        (["retriever", "query", "--index", "nowhere", "x"], 2, ["faiss", "fastapi"]),
        (["data", "check", train, test], 0, light),
        (["data", "show", train], 0, light),
        (["export", "--help"], 0, ["peft"]),
        (["export", nano, "--out", "docs"], 2, ["peft"]),
        (["export", "docs", "--out", "/tmp/none"], 2, ["peft"]),
        (["serve", empty], 2, []),
        (["serve", "--port", "x", "m"], 2, []),
        (["chat", empty], 2, []),
        (["serve", nano, "--engine", "vllm"], 2, []),
        (["ppo", "data.train_files=x", "actor_rollout_ref.model.path=x", "trainer.nnodes=2"], 2, ["ray"]),
        *(([*command.split(), *NEEDED[command], *keys.split()], 2, []) for command, keys in MISTAKES),
    ]
    command, root = [sys.executable, "-c", PROGRAM, json.dumps(lines)], Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "nowhere: no such index folder" in done.stderr
    assert "no config.json; the model path must name a Hugging Face model folder" in done.stderr
    assert not [message for message in MISTAKES.values() if message not in done.stderr]


@pytest.mark.parametrize(
    ("parser", "words", "found"),
    [
        (serve.chat_parser, "chat", {"system": "Be brief.", "temperature": 0.7}),
        (data.check_parser, "data check", {"files": ["train.parquet", "test.parquet"]}),
        (data.show_parser, "data show", {"file": "train.parquet", "rows": "0:3"}),
        (export.parser, "export", {"source": "outputs/burnish/run/global_step_30"}),
        (runs.replay_parser, "replay", {"keys": ["trainer.device=cpu"]}),
        (retriever.index_parser, "retriever index", {"corpus": "corpus.jsonl", "output": "wiki-index"}),
        (retriever.query_parser, "retriever query", {"words": ["wiki-index", "who wrote hamlet"]}),
        (serve_command.parser, "retriever serve", {"index": "wiki-index"}),
        (serve.parser, "serve", {"port": 8001, "folder": "outputs/quickstart"}),
        (runs.status_parser, "status", {"run": "outputs/burnish/run"}),
        (runs.runs_parser, "runs", {"folder": "outputs"}),
        (run_views.show_parser, "show", {"step": 10, "worst": True}),
        (run_views.plot_parser, "plot", {"metric": ["critic/score/mean", "response_length/mean"]}),
        (run_views.tensorboard_parser, "tensorboard", {"run": "outputs/burnish/run"}),
        (run_views.compare_parser, "compare", {"runs": ["outputs/burnish/grpo", "outputs/burnish/rloo"]}),
        (quickstart.parser, "quickstart", {"task": "search", "seeds": [1, 2, 3], "steps": 60}),
    ],
)
def test_help_shows_an_example_that_parses(parser, words, found, capsys):
    with pytest.raises(SystemExit) as left:
        main([*words.split(), "--help"])
    assert left.value.code == 0
    example = shlex.split(capsys.readouterr().out.partition("example:\n  ")[2])
    assert example[: len(words.split()) + 1] == ["burnish", *words.split()]
    parsed = parser().parse_args(example[len(words.split()) + 1 :])
    assert {name: getattr(parsed, name) for name in found} == found


@pytest.mark.parametrize(
    ("words", "extra"), [(["serve", "m"], "serve"), (["retriever", "serve", "--index", "x"], "search")]
)
def test_servers_without_their_packages_name_the_extra(words, extra, monkeypatch, capsys):
    monkeypatch.setattr("burnish.entry.arguments.find_spec", lambda name: None)
    assert main(words) == 2
    said = f"needs the package fastapi and uvicorn; install it with {install_command(extra)}"
    assert said in capsys.readouterr().err


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("mistakes")
    write_parquet(arithmetic.rows("train", 20), place / "train.parquet")
    write_parquet([{"data_source": "burnish/arithmetic", "text": "x"}], place / "other.parquet")
    (place / "cut.jsonl.gz").write_bytes(gzip.compress(b'{"prompt": "x"}\n' * 1000)[:40])
    (place / "rows.jsonl").write_text('{"prompt": "x"}\n')
    (place / "question.jsonl").write_text('{"question": "x"}\n')
    row = {"data_source": "gsm8k", "prompt": "1+1?", "reward_model": {"ground_truth": "2"}}
    (place / "right.jsonl").write_text(json.dumps(row) + "\n")
    write_corpus(place / "corpus.jsonl")
    (place / "bad.jsonl").write_text('{"id": "0", "contents": "fine"}\noops\n')
    (place / "empty").mkdir()
    (place / "docs").mkdir()
    (place / "docs" / "page.md").write_text("")
    shutil.copytree(quickstart.NANO, place / "nano")
    return place


@pytest.fixture
def place(files, monkeypatch):
    """The working directory; nothing may be loaded, opened or installed there."""
    monkeypatch.chdir(files)
    monkeypatch.setattr("burnish.serving.server.load", lambda *_: pytest.fail("the model was loaded"))
    monkeypatch.setattr("burnish.search.server.open_index", lambda *_, **__: pytest.fail("the index was opened"))
    monkeypatch.setattr("burnish.rollout.hosted.spec.find_spec", lambda name: None)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("data check nowhere.parquet", "data file not found: nowhere.parquet (working directory: "),
        ("data check a --max-prompt-length 9", "--max-prompt-length counts tokens: give the model's --tokenizer"),
        ("data check a --max-prompt-length 0 --tokenizer x", "--max-prompt-length 0: a prompt has at least"),
        ("data check a --json none/found.json", "--json none/found.json: its folder does not exist; create it"),
        ("data check cut.jsonl.gz", "cut.jsonl.gz: cannot be read: Compressed file ended"),
        ("data check rows.jsonl --tokenizer empty", "empty: no config.json; the model path must name a Hugging Face"),
        ("data check question.jsonl", "no column 'prompt'; the columns are question. Name the one with the prompts in"),
        ("data check right.jsonl --reward no.py", "--reward no.py: custom_reward_function.path=no.py: no such file"),
        ("data show train.parquet --rows 20", "train.parquet has no row 20; its rows are 0 to 19"),
        ("data show train.parquet --rows x", "--rows x: expected a row number, a range such as 0:3, or several: 0,7,9"),
        ("data show train.parquet --where data_source", "--where data_source: expected COLUMN=VALUE, for example"),
        ("data show train.parquet --where data_sauce=x", "no column 'data_sauce'; the columns are data_source, prompt"),
        ("data show train.parquet --where data_source=x", "no such row; data_source is mostly burnish/arithmetic (20)"),
        ("data show train.parquet --random 0", "--random 0: ask for at least 1 row"),
        ("data show train.parquet --rows 1 --random 2", "argument --random: not allowed with argument --rows"),
        ("data show other.parquet --prompt-key question", "Name the one with the prompts in --prompt-key"),
        ("data show train.parquet --tokenizer empty", "--tokenizer empty: empty: no config.json; the model path must"),
        ("export", "burnish export: the following arguments are required: source, --out. `burnish export --he"),
        ("export m --out x --dtype int3", "argument --dtype: int3 is unknown; choose float32, bfloat16, float16"),
        ("export m --out x --max-shard-size big", "--max-shard-size: big is not a size; write for example 5GB"),
        ("export m --out x --role judge", "argument --role: invalid choice: 'judge'"),
        ("export m --out x --adapter-only --max-shard-size 1GB", "an adapter is one file, so leave it out"),
        ("export no/such/m --out x", "the model path no/such/m: there is no such folder"),
        ("export empty --out x", "empty: no config.json; the model path must name a Hugging Face model folder"),
        ("export nano --out docs", "exists and is not empty; name a new folder, or replace it with"),
        ("export nano --out docs --overwrite", "is not replaced: it is not a model folder"),
        ("export nano --out nano/x", "nano; choose a folder outside"),
        ("export nano --out x --base y", "--base is for LoRA adapters"),
        ("retriever index --corpus no.jsonl --output x", "cannot read the corpus no.jsonl: No such file"),
        ("retriever index --corpus bad.jsonl --output x", "bad.jsonl, line 2: not JSON"),
        ("retriever index --corpus corpus.jsonl --output x --kind dense", "--kind dense needs --encoder FOLDER"),
        ("retriever index --corpus corpus.jsonl --output x --pooling cls", "--encoder and its flags go with"),
        ("retriever index --corpus corpus.jsonl --output x --faiss flat", "--faiss goes with --kind dense"),
        ("retriever index --corpus corpus.jsonl --output x --device cpu", "--device goes with --kind dense"),
        ("retriever index --corpus corpus.jsonl --output x --encoder no", "--encoder no: no config.json in it"),
        ("retriever query --index x q --topk 0", "argument --topk: 0 is not 1 or more"),
        ("retriever serve --index x --api-key ''", "--api-key is empty; give a key, or leave it out"),
        ("retriever serve --index x --topk 101", "--topk 101: at most 100"),
        ("retriever serve --index x --port 0 --host 'no host'", "--host no host: no such address"),
        ("serve m --port x", "argument --port: invalid int value: 'x'"),
        ("serve m --port 70000", "--port 70000: ports go from 1 to 65535"),
        ("serve m --max-num-seqs 0", "argument --max-num-seqs: 0 is not 1 or more"),
        ("serve m --max-waiting -1", "argument --max-waiting: -1 is not 0 or more"),
        ("serve m --dtype int8", "argument --dtype: invalid choice: 'int8'"),
        ("serve m --prot 1", "unrecognized arguments: --prot 1"),
        ("serve nano --port 0 --host 'no such host'", "--host no such host: no such address"),
        ("serve nano --port 0 --host 192.0.2.1", "--host 192.0.2.1: not an address of this machine"),
        ("serve nano --port 0 --max-model-len 5000", "--max-model-len 5000: the model's context is 1024 tokens; lower"),
        ("serve nano --engine vllm", "--engine vllm needs the package vllm, which is not installed"),
        ("serve nano --engine nope", "--engine nope: unknown rollout engine; this version has native, hf, vllm, sg"),
        ("serve nano --api-key ''", "--api-key is empty; give a key, or leave it out"),
    ],
)
def test_mistakes_are_one_line_with_the_fix(place, capsys, line, said):
    assert main(shlex.split(line)) == 2
    out, error = capsys.readouterr()
    assert said in error and error.startswith("burnish: error: ") and error.count("\n") == 1 and not out
