import gzip
import importlib.util
import json
import os
import re
import socket

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from burnish.data.files import describe, largest_remainder, lookup, read_rows, write_parquet
from burnish.errors import DataError, NotAvailable
from tests.data.conftest import refused

ROWS = [
    {"prompt": "a", "extra_info": {"index": 0, "difficulty": "easy"}, "n": 1},
    {"prompt": "b", "extra_info": {"index": 1, "difficulty": None}, "n": 2},
]

HAS_PANDAS = importlib.util.find_spec("pandas") is not None


def test_parquet_round_trip_in_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    path = write_parquet(ROWS, "~/deep/rows.parquet")
    assert read_rows(path) == read_rows("~/deep/rows.parquet") == ROWS
    assert os.listdir(tmp_path / "deep") == ["rows.parquet"]
    facts = describe(path)
    assert (facts.rows, facts.columns) == (2, ("prompt", "extra_info", "n"))
    (tmp_path / "rows.jsonl").write_text('{"a": 1}\n{"b": 2}\n')
    facts = describe(tmp_path / "rows.jsonl")
    assert (facts.rows, facts.columns) == (2, ("a", "b"))


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (
            [{"kwargs": {"a": {"x": 1}}}, {"kwargs": {"b": [{"y": "z"}]}}],
            [{"kwargs": {"a": {"x": 1}, "b": None}}, {"kwargs": {"a": None, "b": [{"y": "z"}]}}],
        ),
        ([{"a": 1}, {"a": 2.5, "b": "x"}], [{"a": 1.0, "b": None}, {"a": 2.5, "b": "x"}]),
    ],
)
def test_fields_that_only_some_rows_have_are_null_in_the_others(tmp_path, rows, expected):
    got = read_rows(write_parquet(rows, tmp_path / "rows.parquet"))
    assert got == expected and {*map(type, got[0].values())} <= {dict, list, int, float, str, type(None)}


def test_bytes_and_text_and_maps_and_line_separators(tmp_path):
    column = pa.array([[("k", 1)]], type=pa.map_(pa.string(), pa.int64()))
    pq.write_table(pa.table({"m": column}), tmp_path / "m.parquet")
    assert read_rows(tmp_path / "m.parquet") == [{"m": {"k": 1}}]
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a\u2028b"}\n', encoding="utf-8")
    assert read_rows(tmp_path / "rows.jsonl") == [{"prompt": "a\u2028b"}]
    rows = [{"images": [{"bytes": b"x", "path": "a"}], "tags": ["a", None]}, {"images": None, "tags": []}]
    assert read_rows(write_parquet(rows, tmp_path / "rows.parquet")) == rows


@given(st.lists(st.floats(0.001, 1000), min_size=1, max_size=8), st.integers(0, 1000))
@settings(deadline=None)
def test_largest_remainder_is_exact_and_within_one_of_the_share(weights, total):
    shares = largest_remainder(weights, total)
    assert sum(shares) == total
    for share, weight in zip(shares, weights, strict=True):
        assert abs(share - total * weight / sum(weights)) < 1 + 1e-9


@pytest.mark.parametrize("name", ["rows.json", "rows.jsonl", "rows.json.gz", "rows.jsonl.gz", "ROWS.JSONL"])
@pytest.mark.parametrize("as_array", [True, False])
def test_json_formats(tmp_path, name, as_array):
    text = json.dumps(ROWS, indent=1) if as_array else "\n".join(map(json.dumps, ROWS)) + "\n\n"
    content = text.encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    assert read_rows(tmp_path / name) == ROWS


def test_lookup_takes_the_literal_name_and_missing_folders_and_remote_files_are_named(tmp_path, monkeypatch):
    row = {"extra_info": {"difficulty": 3}, "a.b": 1, "text": "x"}
    assert (lookup(row, "extra_info.difficulty"), lookup(row, "a.b")) == (3, 1)
    assert lookup(row, "extra_info.nothing.more") is None and lookup(row, "text.length") is None
    monkeypatch.chdir(tmp_path)
    refused(rf"not found: train.parquet \(working directory: {tmp_path}\)", read_rows, "train.parquet")
    refused("is a folder; name the files in it", read_rows, tmp_path)
    copy = "hdfs://host/x.parquet.*Copy the file to this machine"
    refused(copy, read_rows, "hdfs://host/x.parquet", error=NotAvailable)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: content[:-20], "not a readable parquet file"),
        (lambda content: content[:4] + b"\xff" * 396 + content[400:], "not a readable parquet .*download it again"),
        (None, "rows.parquet: the file has no rows"),
    ],
)
def test_broken_and_empty_parquet(tmp_path, damage, message):
    path = write_parquet(ROWS * 500, tmp_path / "rows.parquet")
    if damage:
        path.write_bytes(damage(path.read_bytes()))
    else:
        pq.write_table(pa.table({"prompt": pa.array([], type=pa.string())}), path)
    for reader in (read_rows, lambda path: list(describe(path))):
        refused(message, reader, path)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        pytest.param(pa.timestamp("ns"), 1, marks=pytest.mark.skipif(HAS_PANDAS, reason="pandas has a type for it")),
        (pa.date32(), 10**7),
        (pa.timestamp("us", "No/Where"), 1),
    ],
)
def test_a_column_that_python_has_no_type_for_is_named(tmp_path, kind, value):
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"prompt": ["a"], "when": pa.array([value], type=kind)}), path)
    said = re.escape(f"{path}: column 'when' ({kind}) has a value that Python has no type for: ")
    fix = r"Write the column in another type \(timestamp\[us\], say, or text\), or drop it"
    refused(f"^{said}(?!.*pandas).*{fix}$", read_rows, path)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"a": {}}], "parquet cannot hold these rows: .*struct type 'a' with no child"),
        ([{"a": 2**70}], "rows.parquet: column 'a': .*too large"),
        ([], "no rows to write"),
    ],
)
def test_rows_that_cannot_be_written_leave_nothing(tmp_path, rows, message):
    refused(message, write_parquet, rows, tmp_path / "rows.parquet")
    assert not os.listdir(tmp_path)
    (tmp_path / "file").write_text("")
    refused("file/rows.parquet: cannot be written: ", write_parquet, ROWS, tmp_path / "file" / "rows.parquet")


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([{"a": 1}, {}, {"a": "x"}], "'a' holds integer (1, first in row 0), text (1, first in row 2)"),
        ([{"a": True}, {"a": 1}], "'a' holds boolean (1, first in row 0), integer (1, first in row 1)"),
        ([{"a": {"b": "x"}}, {"a": None}, {"a": {"b": 2.5}}], "'a.b' holds text (1, first in row 0), number (1, first"),
        ([{"a": [1]}, {"a": [2, "x"]}], "'a[]' holds integer (2, first in row 0), text (1, first in row 1)"),
        ([{"a": [{"b": "x"}]}, {"a": {"b": "x"}}], "'a' holds list<object> (1, first in row 0), object (1, first in"),
        ([{"a": [{"b": [1]}]}, {"a": [{"b": ["x"]}]}], "'a[].b[]' holds integer (1, first in row 0), text (1, first"),
        ([{"a": "x"}, {"a": b"y"}], "'a' holds text (1, first in row 0), bytes (1, first in row 1)"),
        ([{"a": ["x", b"y"]}], "'a[]' holds text (1, first in row 0), bytes (1, first in row 0)"),
    ],
)
def test_mixed_types_are_one_line_with_the_column_and_both_types(tmp_path, rows, problem):
    path, fix = tmp_path / "rows.parquet", "; a parquet column has one type: convert them to one"
    refused(f"^{re.escape(f'{path}: {problem}')}.*{fix}$", write_parquet, rows, path)
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("row", [{"a": "so \ud83d it is"}, {"a": [{"b": "so \ud83d it is"}]}, {"so \ud83d it is": 1}])
def test_a_lone_surrogate_is_reported_with_its_text(tmp_path, row):
    path = tmp_path / "rows.parquet"
    said = f"{path}: the text 'so \\ud83d it is' has a lone surrogate; fix it or drop its row"
    refused(f"^{re.escape(said)}$", write_parquet, [row], path)
    assert not os.listdir(tmp_path)


def packed(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)


HOSTILE_FILES = {
    "a huge integer": ("a.jsonl", b'{"a": 1}\n{"a": ' + b"9" * 10**5 + b"}", "line 2 has an integer of more than 4300"),
    "a huge negative integer": ("a.jsonl", b'{"a": -' + b"9" * 5000 + b"}", "line 1 has an integer of more than 4300"),
    "a huge integer in an array": ("a.json", b'[{"a": 1}, {"a": ' + b"9" * 5000 + b"}]", "row 1 .* has an integer of"),
    "a huge integer deep in an array": ("a.json", b'[{}\n,\n{"a": [{"b": ' + b"9" * 5000 + b"}]}]", "row 1 .* integer"),
    "a nested row": ("a.jsonl", b'{"a": ' + b"[" * 70 + b"]" * 70 + b"}", "line 1 is nested too deeply .* 64 levels"),
    "nested objects": ("a.jsonl", b'{"a": ' * 300 + b"1" + b"}" * 300, "line 1 is nested too deeply to be read"),
    "a nested row of an array": (
        "a.json",
        b'[{"a": 1}, {"a": ' + b"[" * 900 + b"]" * 900 + b"}]",
        "row 1 .* nested too",
    ),
    "very deep in an array": ("a.json", b'[{"a": 1}, {"a": ' + b'{"a":' * 10**5, "row 1 .* nested too deeply"),
    "brackets only": ("a.json", b"[" * 10**6, "row 0 .* nested too deeply"),
    "very deep in a line": ("a.jsonl", b'{"a": 1}\n{"a": ' + b"[" * 10**5, r"a\.jsonl: line 2 is nested too deeply"),
    "brackets in texts, and a nested row": (
        "a.jsonl",
        json.dumps({"a": "[" * 100}).encode() + b'\n{"a": ' + b"[" * 65 + b"]" * 65 + b"}",
        "line 2 is nested too deeply",
    ),
    "an empty parquet file": ("a.parquet", b"", r"a\.parquet: not a readable parquet file \(0 bytes\)"),
    "no parquet": ("a.parquet", b"PAR1 no PAR1", "truncated or of another format. Write or download it again"),
    "half an object": ("a.jsonl", b'{"a": 1}\n{"a": \n', r"a\.jsonl: line 2 is not valid JSON"),
    "half an array": ("a.json", b'[{"a": 1}', r"a\.json: not valid JSON: .*\(line 1, column"),
    "an object of lines": ("a.json", b'{"data": [\n]}', "one object per line, or one array of objects"),
    "nothing": ("a.jsonl", b"", r"a\.jsonl: the file has no rows"),
    "half a gzip file": ("a.jsonl.gz", packed(b'{"a": 1}')[:-9], r"a\.jsonl\.gz: cannot be read"),
    "no gzip": ("a.jsonl.gz", b"plain", "cannot be read: .*; it is broken or no gzip file: download or write it again"),
    "another format": ("a.csv", b"a,b", r"unknown format; a data file ends with one of \.parquet, \.json"),
    "a gzip bomb in one line": ("a.jsonl.gz", packed(b" " * 2**20), "a.jsonl.gz: unpacks to more than 100 times its"),
    "a gzip bomb of lines": ("a.jsonl.gz", packed(b"{}\n" * 2**19), "a.jsonl.gz: unpacks to more than 100 times its"),
    "a gzip bomb of blank lines": ("a.jsonl.gz", packed(b"\n" * 2**20), "unpacks to more than 100 times its"),
    "a gzip bomb in an array": ("a.json.gz", packed(b"[" + b" " * 2**20 + b"]"), "unpacks to more than 100 times"),
    "a gzip bomb that is broken": ("a.json.gz", packed(b" " * 2**20)[:-200], "unpacks to more than 100 times"),
    "gzip twice": ("a.jsonl.gz", packed(packed(b'{"a": 1}\n')), "a.jsonl.gz: not UTF-8 text"),
    "gzip without its name": ("a.jsonl", packed(b'{"a": 1}\n'), "a.jsonl: not UTF-8 text"),
    "capital letters, no gzip": ("A.JSONL.GZ", b'{"a": 1}', "broken or no gzip file"),
    "a long line": ("a.jsonl", b'{"a": 1}\n{"a": "' + b"a" * 2**17 + b'"}', "line 2 has 131072 bytes or more"),
    "a long line without an end": ("a.jsonl", b'{"a": "' + b"a" * 2**18, "line 1 has 131072 bytes or more"),
    "nulls": ("a.jsonl", b"\0" * 1000, "line 1 is not valid JSON"),
    "a parquet file by another name": ("a.jsonl", b"PAR1\x15\x00\x15\xff", "not UTF-8 text .byte 7"),
    "UTF-16": ("a.jsonl", '{"a": 1}'.encode("utf-16"), "not UTF-8 text .byte 0"),
    "half a character in a later line": ("a.jsonl", b'{"a": 1}\n{"a": "\xc3"}', "not UTF-8 text .byte 16"),
    "text after the array": ("a.json", b'[{"a": 1}] x', "not valid JSON: Extra data"),
    "a number": ("a.json", b"1", "line 1 holds a int, not an object"),
    "null": ("a.jsonl", b'{"a": 1}\nnull\n', "line 2 holds a NoneType, not an object"),
    "a list of lists": ("a.json", b'[{"a": 1}, [1]]', "row 1 .* holds a list, not an object"),
    "an empty array": ("a.json", b"[]", "the file has no rows"),
}


@pytest.mark.hostile
@pytest.mark.parametrize(("name", "content", "message"), HOSTILE_FILES.values(), ids=HOSTILE_FILES)
def test_a_hostile_file_is_one_line_and_one_next_to_it_is_read(tmp_path, monkeypatch, name, content, message):
    monkeypatch.setattr("burnish.data.files.UNPACKED", 2**16)
    monkeypatch.setattr("burnish.data.files.LONGEST_LINE", 2**17)
    (tmp_path / name).write_bytes(content)
    (tmp_path / "honest.jsonl.gz").write_bytes(packed(json.dumps(ROWS[0]).encode()))
    with pytest.raises(DataError, match=message) as caught:
        read_rows(tmp_path / name)
    assert (
        str(tmp_path / name) in str(caught.value) and str(caught.value).isprintable() and len(str(caught.value)) < 400
    )
    assert read_rows(tmp_path / "honest.jsonl.gz") == ROWS[:1]


@pytest.mark.hostile
@pytest.mark.parametrize("kind", ["pipe", "socket", "link to a device"])
def test_what_is_no_file_is_not_opened(tmp_path, kind):
    path = tmp_path / "rows.jsonl"
    with socket.socket(socket.AF_UNIX) as made:
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "socket":
            made.bind(str(path))
        else:
            path.symlink_to("/dev/zero")
        refused(f"{path} is a pipe, a socket or a device; write its rows to a file", read_rows, path)


@pytest.mark.hostile
def test_parquet_that_unpacks_to_far_more_than_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr("burnish.data.files.DECODED", 2**20)
    path, text = tmp_path / "rows.parquet", "a" * 10**4
    pq.write_table(pa.table({"prompt": pa.DictionaryArray.from_arrays([0] * 10**4, [text])}), path)
    refused("rows.parquet: its rows take more than 100 times the file's size", read_rows, path)
    kind = pa.int64()
    for _ in range(80):
        kind = pa.list_(kind)
    pq.write_table(pa.table({"a": pa.array([None], type=kind)}), path)
    refused("not a readable parquet file .*too deeply nested", read_rows, path)
