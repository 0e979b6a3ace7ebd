"""README and docs are checked where they can be: links, paths, commands, Python blocks, names of keys and functions."""

import ast
import importlib
import math
import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from safetensors import safe_open

from burnish import config
from burnish.algorithms.needs import needs_of
from burnish.cli import data_make, quickstart
from burnish.cli.main import COMMANDS, main
from burnish.config.aliases import ALIASES, RM_ALIASES, SFT_ALIASES, why_unsupported
from burnish.config.finalise import finalise_eval
from burnish.config.key import keys_of
from burnish.entry.keys import KEY_COMMANDS
from burnish.tracking.jsonl import read_metrics
from burnish.trainer.main_eval import take_threshold

ROOT = Path(__file__).parents[1]
PAGES = [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "examples/README.md"))]
PAGES += sorted((ROOT / "docs").glob("*.md"))
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?:^    (?:burnish|python3 -m burnish|make) .*\n?)+", re.MULTILINE)
PARAMETERS = re.compile(r"([\d.]+) (?:million|M)\s+parameters")
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)

ENTRY_POINTS = {
    "burnish.trainer.main_ppo": "ppo",
    "burnish.trainer.sft_trainer": "sft",
    "burnish.trainer.rm_trainer": "rm",
    "burnish.trainer.main_generation": "generate",
    "burnish.trainer.main_eval": "eval",
}
ROW_FIELDS = ("reward_model.ground_truth",)  # names that are also those of sections
FILE_ENDINGS = (".py", ".yaml", ".json", ".jsonl", ".txt", ".png", ".safetensors")
ELSEWHERE = {"--config-path=outputs/burnish/run", "--config-name=sums"}  # recipes of a run, and of a reader
LOADERS = {"ppo": config.load_ppo, "sft": config.load_sft, "rm": config.load_rm}
MODEL = {"ppo": "actor_rollout_ref.model.path", "sft": "model.path", "rm": "model.path"}


def blocks(page: Path, language: str) -> list[str]:
    return [text for kind, text in FENCE.findall(page.read_text()) if kind == language]


def commands(page: Path) -> Iterator[list[str]]:
    """The commands of a page as words, without comments and leading variables."""
    for text in [*blocks(page, "bash"), *INDENTED.findall(page.read_text())]:
        for line in text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                words = words[1:]
            if words:
                yield words


@cache
def anchors(page: Path) -> frozenset[str]:
    """The headings of a page as GitHub links to them."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings)


@each_page
def test_links_resolve(page):
    for target in re.findall(r"\]\(([^)]+)\)", FENCE.sub("", page.read_text())):
        if "://" not in target:
            name, _, anchor = target.partition("#")
            file = page.parent / name if name else page
            assert file.exists(), f"{page.name} links to {target}"
            assert not anchor or anchor in anchors(file), f"{page.name} links to {target}, which has no such heading"


@each_page
def test_commands_are_right(page, monkeypatch):
    """The programs of engines that burnish does not bring need not be installed."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("burnish.rollout.hosted.spec.HostedSpec.check_installed", lambda *words: None)
    for words in commands(page):
        try:
            check_command(words)
        except Exception as error:
            raise AssertionError(f"{page.name}: {shlex.join(words)}: {error}") from error


def check_command(words: list[str]) -> None:
    program, *rest = words
    if program == "make":
        targets = {line.split(":")[0] for line in (ROOT / "Makefile").read_text().splitlines() if ":" in line}
        names = [word for word in rest if "=" not in word]
        assert set(names) <= targets, "no such target"
        arguments = [shlex.split(word.removeprefix("ARGS=")) for word in rest if word.startswith("ARGS=")]
        if "quickstart" in names and arguments:
            quickstart.parser().parse_args(arguments[0])
    elif program == "python3" and rest[0] == "-m" and rest[1] in ENTRY_POINTS:
        check_keys(ENTRY_POINTS[rest[1]], rest[2:])
    elif program == "burnish":
        check_burnish(*rest)
    elif "/" in program and not program.startswith("."):
        assert (ROOT / program).is_file(), "no such file"


def check_burnish(name: str, *rest: str) -> None:
    """The keys or flags of a command exist and have right values; files need not be there."""
    assert name in COMMANDS, f"burnish {name} is not there"
    if "--help" in rest:
        assert name not in KEY_COMMANDS or KEY_COMMANDS[name].run(None, list(rest)) == 0
    elif name in KEY_COMMANDS:
        check_keys(name, list(rest))
    elif name == "data" and rest[0] == "make":
        data_make.parse(rest[1], list(rest[2:]))
    else:
        command, words = COMMANDS[name], list(rest)
        if command.parts:
            command = command.parts[words.pop(0)]
        module, _, name = command.module.partition(":")
        getattr(importlib.import_module(module), f"{name}_parser" if name else "parser")().parse_args(words)


def check_keys(command: str, words: list[str]) -> None:
    """The keys exist, the values convert, and they go together; files need not be there."""
    if ELSEWHERE & set(words):
        words = [word for word in words if not word.startswith("--config-")]
    if "--multirun" in words:
        words = [word.split(",")[0] if word.startswith("trainer.seed") else word for word in words]
        words.remove("--multirun")
    if command == "eval":
        for job in config.load(take_threshold(words)[0], config.EVAL):
            finalise_eval(job.config, job.explicit)
        return
    if command == "generate":
        for job in config.load(words, config.GENERATION):
            config.finalise_generation(job.config, job.explicit)
        return
    loaded = LOADERS[command](words)
    if not {"data.train_files", MODEL[command]} <= loaded.explicit:
        return
    if command == "sft":
        config.finalise_sft(loaded.config, loaded.explicit)
    elif command == "rm":
        config.finalise_rm(loaded.config, loaded.explicit)
    elif ":" not in loaded.config.algorithm.adv_estimator:
        config.finalise(loaded.config, loaded.explicit, needs_of(loaded.config))


@each_page
def test_python_blocks_compile_and_their_imports_exist(page):
    for text in blocks(page, "python"):
        for node in ast.walk(ast.parse(text, str(page))):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("burnish"):
                module = importlib.import_module(str(node.module))
                for name in node.names:
                    if not hasattr(module, name.name):
                        importlib.import_module(f"{node.module}.{name.name}")


@cache
def known_names() -> frozenset[str]:
    roots = (config.PPOConfig, config.SFTConfig, config.RMConfig, config.GenerationConfig, config.EvalConfig)
    return frozenset({*(name for root in roots for name in keys_of(root)), *ALIASES, *SFT_ALIASES, *RM_ALIASES})


@each_page
def test_keys_in_the_text_exist(page):
    """`section.key` in running text, whole or by its end (`rollout.n`)."""
    sections = {name.split(".")[0] for name in known_names()} | {"rollout", "actor", "kl_ctrl", "val_kwargs"}
    for word in re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)(?:\.\*)?(?:=[^`]*)?`", FENCE.sub("", page.read_text())):
        if word.split(".")[0] in sections and not word.endswith(FILE_ENDINGS):
            whole = any(f".{word}." in f".{name}." for name in known_names())
            below_open_dict = any(word.startswith(name + ".") for name in known_names())
            assert whole or below_open_dict or why_unsupported(word) or word in ROW_FIELDS, f"{page.name}: `{word}`"


def test_the_tree_of_the_readme_exists_and_leads_to_the_loop_an_algorithm_a_loss_and_a_reward():
    (tree,) = [text for text in blocks(ROOT / "README.md", "") if "burnish/\n" in text]
    parent, named = ROOT, set()
    for line in tree.splitlines():
        name = line.split()[0]
        folder = parent if line.startswith("  ") else ROOT
        assert (folder / name).exists(), f"README's tree names {folder / name}"
        named.add(name.rstrip("/"))
        if not line.startswith("  "):
            parent = ROOT / name
    packages = {path.parent.name for path in (ROOT / "burnish").glob("*/__init__.py")}
    assert packages <= named, "a package is missing from README's tree"
    text = (ROOT / "README.md").read_text()
    for name in ("trainer/ppo", "algorithms/advantages/grpo", "algorithms/losses/vanilla", "rewards/scores/gsm8k"):
        assert f"](burnish/{name}.py)" in text
    for name in ("make quickstart", "make test"):
        assert name in text[: text.index("## A first look")]


def test_numbers_of_the_readme_are_those_of_the_code():
    text = (ROOT / "README.md").read_text()
    assert f"Python {tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']['requires-python'][2:]} or" in text
    rows = re.findall(r"^\| \d \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", text, re.MULTILINE)
    before, after, seconds = map(float, rows[0])
    line = f"{quickstart.HELD_OUT} held-out questions: {before:.2f} before, {after:.2f} after ({quickstart.STEPS} steps"
    assert f"{line} of GRPO, {seconds:.0f} s)" in text


def test_sizes_of_the_embedded_models_are_counted():
    sizes = set()
    for file in (ROOT / "burnish" / "models").glob("*/model.safetensors"):
        with safe_open(file, "pt") as weights:
            sizes.add(sum(math.prod(weights.get_slice(name).get_shape()) for name in weights.keys()) / 1e6)  # noqa: SIM118
    pages = [*PAGES, *(ROOT / "burnish" / "cli").glob("*.py"), *(ROOT / "examples").rglob("*.[mp][dy]")]
    pages += (ROOT / "burnish" / "models").glob("*/README.md")
    said = [(page, number) for page in pages for number in PARAMETERS.findall(page.read_text()) if float(number) < 1]
    assert len(said) >= 5
    for page, number in said:
        digits = len(number.partition(".")[2])
        assert number in {f"{size:.{digits}f}" for size in sizes}, f"{page.name}: {number} million parameters"


def test_every_recipe_and_page_is_linked():
    table = (ROOT / "docs" / "configuration.md").read_text()
    for recipe in (ROOT / "recipes").rglob("*.yaml"):
        linked = table if not recipe.name.startswith("nano_") else (ROOT / "docs" / "quickstart.md").read_text()
        assert f"../recipes/{recipe.relative_to(ROOT / 'recipes')})" in linked, f"{recipe.name} is not in the docs"
    index = (ROOT / "docs" / "index.md").read_text()
    assert all(f"]({page.name})" in index for page in (ROOT / "docs").glob("*.md") if page.name != "index.md")


def test_the_first_command_of_the_readme_trains_as_it_is_pasted(tmp_path, monkeypatch):
    (block,) = [text for text in blocks(ROOT / "README.md", "bash") if "my_reward.py <<" in text]
    files = dict(re.findall(r"^cat > (\S+) <<'END'\n(.*?)^END$", block, re.MULTILINE | re.DOTALL))
    assert set(files) == {"train.jsonl", "my_reward.py"}
    monkeypatch.chdir(tmp_path)
    Path("burnish").symlink_to(ROOT / "burnish")  # it is pasted beside the package
    for name, text in files.items():
        Path(name).write_text(text)
    (line,) = [line for line in block.replace("\\\n", " ").splitlines() if line.startswith("burnish ppo ")]
    assert main(shlex.split(line)[1:]) == 0
    (run,) = Path("outputs/burnish").iterdir()
    first, *_, last = [line["critic/score/mean"] for line in read_metrics(run)]
    assert first < 0.3 and last > 0.8, "README says from 0.1 to nearly 1"


def defined_names(file: Path) -> set[str]:
    """`function`, `Class` and `Class.method` of a Python file."""
    names = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = [part for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)]
            names |= {f"{node.name}.{method.name}" for method in methods}
    return names


@pytest.mark.parametrize("page", ["walk.md", "architecture.md"])
def test_code_names_after_a_link_exist_in_that_file(page):
    """[file.py](../burnish/file.py) `name`, `other_name`: each is defined in the file."""
    text = (ROOT / "docs" / page).read_text().replace("\n", " ")
    found = re.findall(r"\]\(\.\./(burnish/[\w/]+\.py)\)((?:,? `[\w.]+`)+)", text)
    assert found
    for file, names in found:
        missing = set(re.findall(r"`([\w.]+)`", names)) - defined_names(ROOT / file)
        assert not missing, f"{page}: {file} defines no {', '.join(sorted(missing))}"
