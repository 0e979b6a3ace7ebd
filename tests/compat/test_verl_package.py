"""`import verl`: what is there, what is not, and what it says."""

import os
import subprocess
import sys
import venv

import pytest

import burnish
from tests.compat.conftest import COMPAT, ROOT


def python(code: str, cwd=None, **environment: str) -> subprocess.CompletedProcess:
    env = {name: value for name, value in os.environ.items() if name != "BURNISH_VERL_ANNOUNCED"} | environment
    return subprocess.run([sys.executable, "-c", code], env=env, cwd=cwd, capture_output=True, text=True)


@pytest.mark.parametrize(
    "statement, named, instead",
    [
        ("import verl.models.llama", "verl.models", "docs/training.md"),
        ("from verl.workers.fsdp_workers import ActorRolloutRefWorker", "verl.workers.fsdp_workers", "custom_trainer"),
        (
            "from verl.experimental.agent_loop import ToolAgentLoop",
            "verl.experimental.agent_loop.ToolAgentLoop",
            "docs/agents.md",
        ),
        ("import verl.utils.nothing", "verl.utils.nothing", "docs/from-verl.md"),
        ("from verl import nothing", "verl.nothing", "docs/from-verl.md"),
        ("from verl.protocol import nothing", "verl.protocol.nothing", "docs/from-verl.md"),
    ],
)
def test_what_is_not_covered_is_refused_in_one_line(statement, named, instead):
    with pytest.raises(ModuleNotFoundError) as refused:
        exec(statement)
    assert f"has no {named}; " in str(refused.value) and instead in str(refused.value)
    assert "\n" not in str(refused.value)


def test_missing_attributes_are_named():
    import verl.protocol

    assert not hasattr(verl.protocol, "nothing")
    with pytest.raises(AttributeError, match=r"has no verl\.nothing; docs/from-verl\.md"):
        verl.nothing  # noqa: B018


def test_import_is_announced_once_and_brings_no_torch():
    code = (
        "import subprocess, sys; from verl.utils.reward_score import gsm8k; assert 'torch' not in sys.modules;"
        "subprocess.run([sys.executable, '-c', 'import verl'])"
    )
    done = python(code)
    assert done.returncode == 0
    assert [line for line in done.stderr.splitlines() if "import verl" in line] == [
        f"burnish {burnish.__version__} answers `import verl` (0.4 to 0.9); what differs: docs/from-verl.md"
    ]


def test_verl_itself_is_not_hidden(tmp_path):
    (tmp_path / "verl").mkdir()
    (tmp_path / "verl/__init__.py").write_text("")
    refused = python("import verl", PYTHONPATH=os.pathsep.join([COMPAT, str(ROOT), str(tmp_path)]))
    assert refused.returncode == 1
    assert f"does not take the place of verl at {tmp_path / 'verl'}: remove one" in refused.stderr.splitlines()[-1]


def test_an_installed_verl_is_not_overwritten(tmp_path):
    """The build asks the environment that pip installs into."""
    venv.create(tmp_path / "venv", with_pip=False)
    [packages] = tmp_path.glob("venv/lib/python*/site-packages")
    (packages / "verl-0.6.1.dist-info").mkdir()
    (packages / "verl-0.6.1.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: verl\nVersion: 0.6.1\n")
    (packages / "setuptools.py").write_text("def setup(): print('built')")  # what runs before it is tested
    command = [tmp_path / "venv/bin/python", "setup.py"]
    refused = subprocess.run(command, cwd=COMPAT, capture_output=True, text=True)
    assert refused.returncode == 1 and "verl 0.6.1 is installed here" in refused.stderr
    (packages / "verl-0.6.1.dist-info/METADATA").unlink()
    (packages / "verl-0.6.1.dist-info").rmdir()
    assert subprocess.run(command, cwd=COMPAT, capture_output=True, text=True).stdout == "built\n"
