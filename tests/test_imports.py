"""The import table of docs/architecture.md: which part of burnish may import which.

Every import counts, also those inside functions; only `cli`, which imports a command when it is called, may import
anything there.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import burnish
from burnish.rollout import ENGINES

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "burnish"

# Part → what it may import besides itself and `COMMON`, as docs/architecture.md states it. A dotted name allows that
# module (and what is below it) only.
COMMON = {"errors", "literal", "waits", "spans", "loop_thread", "child", "user_code"}
BLOCK = re.search(r"^```text\nburnish imports\n(.*?)^```", (ROOT / "docs/architecture.md").read_text(), re.M | re.S)
assert BLOCK, "docs/architecture.md has no block `burnish imports`"
ALLOWED: dict[str, set[str]] = {
    part.strip(): {name.strip() for name in names.split(",") if name.strip()}
    for part, names in (line.split("→") for line in BLOCK[1].splitlines())
}

# Third party → the only files that may import it.
ONLY_IN = {
    "ray": ("controller/ray/__init__.py", "controller/ray/cluster.py"),
    "vllm": ("rollout/vllm/host.py", "rollout/vllm/worker.py"),
    "sglang": ("rollout/sglang/host.py", "rollout/sglang/worker.py"),
    "wandb": ("tracking/wandb.py",),
    "mlflow": ("tracking/mlflow.py",),
    "trackio": ("tracking/trackio.py",),
    "peft": ("models/adapters.py", "models/lora.py"),
    "mcp": ("agents/tools/mcp_session.py",),
    "faiss": ("search/dense.py",),
    "bm25s": ("search/bm25.py",),
    "reasoning_gym": ("data/tasks/reasoning_gym.py",),
}

# Imported, with all they import in turn, without torch: help and config errors come at once, scorers start fast.
TORCH_FREE = (
    "errors.py", "literal.py", "waits.py", "spans.py", "loop_thread.py", "child", "user_code.py", "config", "sandbox",
    "tracking", "cli", "entry", "api", "dashboard",
    "search/client.py", "search/serve_command.py", "rewards/scores", "rewards/process.py", "rewards/reference.py",
    "algorithms/__init__.py", "algorithms/advantages/__init__.py", "algorithms/losses/__init__.py",
    "algorithms/needs.py",
    "models/facts.py", "models/folder.py", "models/adapters.py", "models/device.py",
    "export/__init__.py", "export/command.py", "export/source.py", "export/place.py",
    "data/tasks", "data/check.py", "data/report.py", "data/order.py", "data/examples.py", "data/files.py",
    "data/dataset.py", "data/sources.py",
    "trainer/__init__.py", "trainer/main_ppo.py", "trainer/nsys.py", "trainer/sft_trainer.py", "trainer/rm_trainer.py",
    "trainer/main_generation.py", "trainer/main_eval.py", "trainer/evaluation.py", "trainer/evaluation_report.py",
    "trainer/response_file.py",
    "rollout/__init__.py", *(f"rollout/{name}/spec.py" for name in ("native", "hf", "hosted", "vllm", "sglang")),
)  # fmt: skip


def python_files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def imports(tree: ast.AST, inside_functions: bool = True) -> Iterator[tuple[int, str]]:
    """The line and full name of everything a module imports; `from a import b` gives `a.b`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import; write the full name"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        elif inside_functions or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from imports(node, inside_functions)


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def may_import(part: str, target: str) -> bool:
    """Whether a file of `part` may import `target`, a dotted name below burnish."""
    allowed = ALLOWED[part] | COMMON | {part}
    return any(target == name or target.startswith(name + ".") for name in allowed)


def forbidden(path: Path) -> list[str]:
    part, tree = part_of(path), ast.parse(path.read_text(encoding="utf-8"))
    found = []
    for line, name in imports(tree, inside_functions=part != "cli"):
        if name.startswith("burnish.") and name != "burnish.__version__":
            target = name.removeprefix("burnish.")
            if not may_import(part, target):
                found.append(f"{path.relative_to(ROOT)}:{line}: {part} may not import {name}")
    return found


@pytest.mark.parametrize("part", sorted({part_of(path) for path in python_files()} - {"__init__"}))
def test_each_part_imports_only_what_the_table_allows(part):
    assert part in ALLOWED, f"burnish/{part} is new: add it to the table in docs/architecture.md"
    assert not [line for path in python_files() if part_of(path) == part for line in forbidden(path)]


def test_table_has_no_stale_parts_and_nobody_imports_cli_or_api_or_serving_or_the_dashboard():
    assert set(ALLOWED) == {part_of(path) for path in python_files()} - {"__init__"}
    others = [names for part, names in ALLOWED.items() if part != "api"]
    assert not {name.partition(".")[0] for names in others for name in names} & {"cli", "api", "serving", "dashboard"}


def test_every_name_of_the_package_is_there_and_none_is_imported_before_it_is_used():
    program = (
        "import sys, burnish\n"
        "assert not [name for name in sys.modules if name.startswith('burnish.') or name == 'torch']\n"
        "assert burnish.train.__module__ == 'burnish.api.train' and 'torch' not in sys.modules\n"
        "assert [getattr(burnish, name) for name in dir(burnish)]\n"
    )
    stub = (SOURCE / "__init__.pyi").read_text()
    assert set(
        re.findall(r"^(?:from \S+ import \w+ as )?([a-zA-Z]\w+|__version__)(?: = .*|: str|)$", stub, re.M)
    ) == set(burnish.__all__)
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("engine", ENGINES)
def test_engines_do_not_import_each_other(engine):
    others = tuple(f"burnish.rollout.{other}" for other in ENGINES if other != engine)
    files = (SOURCE / "rollout" / engine).rglob("*.py")
    names = [name for path in files for _, name in imports(ast.parse(path.read_text()))]
    assert names and not [name for name in names if name.startswith(others)]


def test_optional_packages_are_imported_in_their_own_files():
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name} belongs in burnish/{' or '.join(homes)}"
        for path in python_files()
        for line, name in imports(ast.parse(path.read_text(encoding="utf-8")))
        if (homes := ONLY_IN.get(name.partition(".")[0])) and path.relative_to(SOURCE).as_posix() not in homes
    ]
    assert not found
    assert [name for _, name in imports(ast.parse((SOURCE / "__init__.py").read_text()))] == ["importlib"]


def test_light_parts_import_without_torch():
    """In a fresh process, so that what is imported by what is imported counts too."""
    chosen = [p for p in python_files() if any(p.is_relative_to(SOURCE / name) for name in TORCH_FREE)]
    modules = [".".join(p.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for p in chosen]
    assert "burnish.config" in modules and "burnish.cli.main" in modules
    program = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(name)\n"
        "    heavy = {'torch', 'tensordict', 'transformers', 'ray', 'matplotlib'} & set(sys.modules)\n"
        "    assert not heavy, f'{name} imports {sorted(heavy)}'\n"
    )
    done = subprocess.run([sys.executable, "-c", program, *modules], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
