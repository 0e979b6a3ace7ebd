"""What is installed has the versions in constraints.txt, and nothing that is installed later replaces them."""

import re
import sysconfig
from importlib.metadata import distributions, requires, version
from pathlib import Path

import pytest

from burnish import errors
from burnish.errors import install_command

ROOT = Path(__file__).parents[1]
SEPARATE = ("vllm", "wandb", "mlflow", "trackio")  # extras of which `make setup` installs nothing
OWN_ENVIRONMENT = re.compile(r"\.venv-\w+/bin/pip|burnish\[vllm\]|pip install sglang|`pip install -e`")


def name_of(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[\s;\[<>=!~(]", requirement)[0]).lower()


# In the environment itself; some packages put copies of others on sys.path.
INSTALLED = {name_of(found.name) for found in distributions(path=[sysconfig.get_path("purelib")])}


def pins() -> dict[str, str]:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    pinned = [line.split("==") for line in lines]
    assert len({name_of(name) for name, _ in pinned}) == len(pinned), "a package is pinned twice"
    return {name_of(name): number for name, number in pinned}


def needed(package: str, seen: set[str]) -> set[str]:
    """The installed packages that a package needs, directly or not."""
    for requirement in requires(package) or ():
        name, extra = name_of(requirement), re.search(r"extra == ['\"]([\w-]+)['\"]", requirement)
        if (extra and (package != "burnish" or extra[1] in SEPARATE)) or name in seen or name not in INSTALLED:
            continue  # not installed: for another platform
        needed(name, seen | {name}) if name == "burnish" else seen.add(name) or needed(name, seen)
    return seen


def test_every_package_that_setup_installs_is_pinned_at_its_version():
    pinned, installed = pins(), needed("burnish", set()) - {"burnish", "setuptools", "pip"}
    if version("torch").split("+")[0] != pinned["torch"]:
        pytest.skip("this environment was made with another file of constraints")
    assert len(installed) > 100
    platform = {name for name in installed if name.startswith(("nvidia-", "cuda-", "triton"))}  # of torch's CUDA builds
    assert not sorted(installed - platform - pinned.keys()), "`make constraints` pins them"
    other = {name: version(name) for name in installed & pinned.keys() if version(name).split("+")[0] != pinned[name]}
    assert not other, "installed are other versions than constraints.txt has"


def test_commands_to_install_something_use_the_constraints():
    pages = [*ROOT.glob("[RC]*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").rglob("*.sh")]
    sources = [path for path in (ROOT / "burnish").rglob("*.py") if path.name != "errors.py"]
    for path in pages + sources:
        for line in path.read_text().splitlines():
            if "pip install" in line and not OWN_ENVIRONMENT.search(line):
                assert re.search(r"-c (\S+/)?constraints\.txt", line), f"{path.relative_to(ROOT)}: {line}"
    for line in (ROOT / "Makefile").read_text().splitlines():
        if "$(PIP) install" in line and "requirements-" not in line and "--no-deps" not in line:
            assert "-c $(CONSTRAINTS)" in line


@pytest.mark.parametrize(
    ("place", "command"),
    [
        ("here", "pip install -c constraints.txt -e '.[serve]'"),
        ("elsewhere", "pip install -c {0}/constraints.txt -e '{0}[serve]'"),
    ],
)
def test_command_for_an_extra(tmp_path, monkeypatch, place, command):
    checkout = tmp_path / "burnish"
    for name in ("constraints.txt", "pyproject.toml", "burnish/errors.py"):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).touch()
    monkeypatch.setattr(errors, "__file__", str(checkout / "burnish" / "errors.py"))
    monkeypatch.chdir(checkout if place == "here" else tmp_path)
    assert install_command("serve") == command.format(checkout)
    (checkout / "constraints.txt").unlink()
    assert install_command("serve") == "pip install 'burnish[serve]'", "an installed package has no checkout"
