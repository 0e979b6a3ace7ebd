"""Where records come from: named files, a folder, a hub that is made up here; and what the errors say."""

import gzip
import json
import re
from functools import partial
from pathlib import Path

import huggingface_hub
import pytest

from burnish.data.files import write_parquet
from burnish.data.sources import Hub, Origin, download, files_in, read, renaming
from burnish.errors import ConfigError, DataError
from tests.data.conftest import refused

HUB = Hub("owner/name", "main")
ROWS = [{"question": "a", "answer": "1"}, {"question": "b", "answer": "2"}]


def write_jsonl(path: Path, rows=ROWS) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


@pytest.mark.parametrize(
    "names",
    [
        ["train.jsonl.gz"],
        ["train.parquet"],
        ["train-00000-of-00002.parquet", "train-00001-of-00002.parquet"],
        ["train/0000.parquet", "train/0001.parquet"],
    ],
)
def test_the_files_of_a_split_in_a_folder(tmp_path, names):
    for name in names:
        write_parquet(ROWS, tmp_path / name) if name.endswith(".parquet") else write_jsonl(tmp_path / name)
    write_jsonl(tmp_path / "test.jsonl")
    (tmp_path / "train.txt").write_text("notes")
    files = files_in(tmp_path, "train")
    assert files == [tmp_path / name for name in names]
    assert [part.records for part in read(files)] == [ROWS] * len(names)


def test_folders_without_the_split_or_with_two_candidates_are_refused(tmp_path):
    write_jsonl(tmp_path / "train.jsonl")
    said = (
        "looked for test.*, test-* and test/* ending with one of .parquet, .json, .jsonl, .json.gz, .jsonl.gz. Name it"
    )
    fix = "with --test FILE, or keep a part of the train records apart with --test-size N"
    refused(f"^{re.escape(f'{tmp_path}: no test file; {said} {fix}')}$", files_in, tmp_path, "test")
    file = write_jsonl(tmp_path / "train.jsonl")
    write_parquet(ROWS, tmp_path / "train.parquet")
    refused(r"both train.parquet and train.jsonl could be the train split; .*--train FILE", files_in, tmp_path, "train")
    refused(f"--source {file}: is a file; name it with --train {file}", files_in, file, "train")
    refused("--source nowhere: not found from .*a folder with train", files_in, "nowhere", "train")


def test_an_origin_reads_the_files_that_are_named_or_the_splits_of_a_folder(tmp_path):
    assert Origin(train=["a", "b"]).files(HUB) == {"train": [Path("a"), Path("b")]}
    assert Origin(test=["c"]).files(HUB) == {"test": [Path("c")]}
    assert Origin(train=["a"], test_size=5).files(HUB) == {"train": [Path("a")]}
    assert Origin(train=["a"], test_size=5).splits(HUB) == ["train", "test"]
    for name in ("train", "validation"):
        write_jsonl(tmp_path / f"{name}.jsonl")
    origin = Origin(source=str(tmp_path))
    files = {"train": [tmp_path / "train.jsonl"], "test": [tmp_path / "validation.jsonl"]}
    assert origin.files(Hub("owner/name", "main", test="validation")) == files
    refused("no test file", origin.files, HUB)
    assert Origin(source=str(tmp_path), test_size=1).files(HUB) == {"train": [tmp_path / "train.jsonl"]}
    assert Origin().splits(Hub("owner/name", "main", train=None)) == ["test"]


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub with one dataset, in two configurations; `calls` are what it was asked for."""
    calls = []

    def snapshot_download(repo_id, **asked):
        calls.append((repo_id, asked))
        return str(tmp_path)

    for split in ("train", "test"):
        write_parquet(ROWS, tmp_path / "main" / split / "0000.parquet")
    write_parquet(ROWS, tmp_path / "default" / "train" / "0000.parquet")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return calls


def test_the_hub_is_asked_for_the_parquet_of_the_splits_alone(hub, tmp_path):
    files = Origin().files(HUB)
    assert files == {split: [tmp_path / "main" / split / "0000.parquet"] for split in ("train", "test")}
    patterns = ["main/train/*.parquet", "main/test/*.parquet"]
    asked = {"repo_type": "dataset", "revision": "refs/convert/parquet", "allow_patterns": patterns}
    assert hub == [("owner/name", asked)]
    hub.clear()
    # Another dataset has its own configuration.
    assert Origin(hub="else/where", test_size=1).files(HUB)["train"] == [tmp_path / "default/train/0000.parquet"]
    assert Origin(hub="else/where", hub_config="main").files(HUB)["test"] == [tmp_path / "main/test/0000.parquet"]
    assert [repo for repo, _ in hub] == ["else/where"] * 2
    with pytest.raises(DataError, match=r"owner/name on the hub has no other/train/\*\.parquet; .*--hub-config"):
        download("owner/name", "other", ["train"])


@pytest.mark.parametrize("name", ["owner/never-fetched", "not/an/id"])
def test_without_network_the_error_says_how_to_give_files(name):
    """The tests run with the hub switched off."""
    fix = "give local files with --source FOLDER, or --train FILE and --test FILE"
    refused(rf"^{name} could not be fetched from the hub \(.*{fix}$", download, name, "main", ["train"])


def test_columns_are_renamed_and_a_replaced_one_is_reported(tmp_path, caplog):
    file = write_jsonl(tmp_path / "a.jsonl", [{"problem": "a", "answer": "long", "short": "1"}])
    (swapped,) = read([file], renaming(["answer=short", "short=answer"]))
    assert swapped.records == [{"problem": "a", "short": "long", "answer": "1"}] and not caplog.messages
    (part,) = read([file], renaming(["problem=question", "short=answer"]))
    assert part.records == [{"question": "a", "answer": "1"}]
    assert caplog.messages == [f"{file}: the column 'answer' is dropped: --rename gives its name to 'short'"]
    with pytest.raises(DataError, match=r"a.jsonl: no column 'task'; the columns are problem, .*--rename THEIRS=quest"):
        read([file], {"task": "question"})


@pytest.mark.parametrize(
    ("call", "said", "message"),
    [
        (Origin, {"train": ["a"], "source": "b"}, "all say where records are: give one"),
        (Origin, {"hub": "a", "source": "b"}, "all say where records are: give one"),
        (Origin, {"test": ["a"], "hub_config": "main"}, "--hub-config .* with local files leave it out"),
        (Origin, {"test": ["a"], "test_size": 5}, "--test gives the test split, and --test-size takes it"),
        (Origin, {"train": ["a"], "test_size": 0}, "--test-size 0: at least 1"),
        (renaming, ["a=question", "b=question"], "--rename a=question and --rename b=question contradict each other"),
        (renaming, ["a=question", "a=answer"], "--rename a=question and --rename a=answer contradict each other"),
        (renaming, ["=question"], "--rename =question: write THEIRS=OURS"),
        (renaming, ["problem="], "--rename problem=: write THEIRS=OURS"),
    ],
)
def test_options_that_contradict_each_other_or_cannot_be_read(call, said, message):
    refused(message, partial(call, **said) if call is Origin else partial(call, said), error=ConfigError)
