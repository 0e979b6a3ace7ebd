"""What `data check` finds in the rows of a file: kinds, columns, lengths, repetitions, and everything that is wrong."""

import copy
import itertools
import json
from pathlib import Path

import pytest

from burnish.data.chat import ChatRenderer
from burnish.data.check import CheckOptions, check_file
from burnish.data.files import MOST_FIELDS, Columns, describe, write_parquet
from burnish.data.report import FINDINGS, KINDS, CheckReport, Lengths, lines, print_report, summary
from burnish.errors import ModelError
from tests.data.conftest import refused


class NoJudge:
    def __init__(self):
        self.scored = []

    def inspect(self, row):
        return None

    def score(self, rows):
        self.scored += rows
        return [None] * len(rows)


class Strict(NoJudge):
    def inspect(self, row):
        return ("refused", "it is even") if row["index"] % 2 == 0 else None

    def score(self, rows):
        return [("failing_reference", f"row {row['index']} scores 0") for row in rows]


def row(question="1+1?", truth="2", **fields):
    return {"data_source": "gsm8k", "prompt": question, "reward_model": {"ground_truth": truth}, **fields}


@pytest.fixture
def check(write_jsonl):
    def run(rows, judge=None, tokenizer=None, name="rows.jsonl", **asked):
        renderer = ChatRenderer(tokenizer) if tokenizer else None
        return check_file(describe(write_jsonl(rows, name)), CheckOptions(**asked), judge or NoJudge(), renderer)

    return run


def found(report):
    return {name: sorted(n for rows in texts.values() for n in rows) for name, texts in report.found.items()}


def test_good_rows_are_described_and_the_judge_decides_what_is_refused_and_what_fails(check):
    judge = NoJudge()
    report = check([row(), row("2+2?", "4")], judge)
    assert (report.kind, report.rows, report.found, report.scored) == ("prompts", 2, {}, 2)
    assert report.sources == {"gsm8k": 2} and report.roles == {"user": 2} and report.turns == {1: 2}
    assert [each["raw_prompt"][0]["content"] for each in judge.scored] == ["1+1?", "2+2?"]
    report = check([row(str(i)) for i in range(5)], Strict())
    assert found(report) == {"refused": [0, 2, 4], "failing_reference": [1, 3]}
    assert report.found["refused"] == {"it is even": [0, 2, 4]}


def test_every_bad_row_is_reported_with_its_field(check, tokenizer):
    rows = [
        row([{"content": "x"}]),
        row(),
        row("a", extra_info="text"),
        row("b", images=[{"path": "x.png"}]),
        row([{"role": "user", "content": [{"type": "image"}]}]),
        row("half \ud83d of it"),
        row([{"role": "system", "content": "x"}]),
    ]
    refusing = copy.deepcopy(tokenizer)
    refusing.chat_template = "{{ raise_exception('only users') if messages[0].role != 'user' else 'u' }}"
    texts = {rows[0]: text for text, rows in check(rows, tokenizer=refusing).found["refused"].items()}
    assert sorted(texts) == [0, 2, 3, 4, 6]
    assert texts[0] == "field 'prompt': message 0 has no role (its fields: content)"
    assert texts[2].startswith("field 'extra_info' is a str")
    assert "images in prompts" in texts[3] and "Drop the column 'images'" in texts[3]
    assert "image parts in messages" in texts[4]
    assert "cannot render messages with the roles system: only users" in texts[6]
    surrogate = "the text has a lone surrogate (\\ud83d); fix or drop the row"
    assert check(rows).found["refused"][surrogate] == [5]


def test_empty_and_repeated_prompts_and_empty_answers(check):
    system = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": " \n"}]
    report = check([row(" "), row(system), row("a", ""), row("b", []), row("c", extra_info={"answer": " "}), row("d")])
    assert found(report) == {"empty_prompt": [0, 1], "empty_answer": [2, 3, 4], "mixed_types": [1, 3]}
    assert set(report.found["empty_answer"]) == {"reward_model.ground_truth is empty", "extra_info.answer is empty"}
    as_message = [{"role": "user", "content": "1+1?"}]
    as_system = [{"role": "system", "content": "1+1?"}]
    report = check([row("1+1?"), row(" 1+1?\n"), row("2+2?"), row(as_message), row("2+2?"), row(as_system)])
    assert report.found["duplicate"] == {"the prompt of row 0": [1, 3], "the prompt of row 2": [4]}


def test_overlap_of_all_pairs_of_files(check):
    a = check([row("x"), row("y"), row("z")], name="a.jsonl")
    b = check([row("new"), row("z\n z"), row(" y ")], name="b.jsonl")
    c = check([row("z")], name="c.jsonl")
    d = check([row("other")], name="d.jsonl")
    report = CheckReport([a, b, c, d])
    shared = {tuple(path.rpartition("/")[2] for path in o.files): o.rows for o in report.overlaps}
    assert shared == {("a.jsonl", "b.jsonl"): [(1, 2)], ("a.jsonl", "c.jsonl"): [(2, 0)]}
    assert report.problems() == {"prompts in two files": 2}
    text = "\n".join(line for line, _ in lines(report))
    assert f"problem: prompts that are both in {a.path} and in {b.path} (1)\n  row 1 = row 2\n" in text


def test_lengths_in_characters_and_in_tokens_as_training_renders_them(check, tokenizer):
    rows = [row("x" * n) for n in (5, 9, 7)]
    assert list(check(rows).lengths["prompt"].values) == [5, 9, 7]
    ids = [ChatRenderer(tokenizer).prompt_ids([{"role": "user", "content": "x" * n}]) for n in (5, 9, 7)]
    report = check(rows, tokenizer=tokenizer, max_length=len(ids[0]))
    assert list(report.lengths["prompt"].values) == [len(each) for each in ids]
    assert report.found == {"over_long": {f"{len(ids[1])} tokens": [1], f"{len(ids[2])} tokens": [2]}}
    text = "\n".join(line for line, _ in lines(CheckReport([report])))
    assert f"problem: rows over the length limit (2); the longest has {len(ids[1])} tokens (row 1)" in text


LENGTHS = [4, 10, 6, 100, 8]


@pytest.mark.parametrize("values", [LENGTHS, [7], [7, 7], [0, 1], list(range(8)), list(range(9)), [0, 10**9]])
def test_summary_and_histogram_of_lengths(values):
    lengths = Lengths("tokens")
    for number, value in enumerate(values):
        lengths.add(number, value)
    bins = lengths.histogram()
    if values is LENGTHS:
        assert lengths.summary() == pytest.approx({"min": 4, "median": 8, "p95": 82, "max": 100, "longest_row": 3})
        assert bins[0] == (4, 16, 4) and bins[-1] == (95, 100, 1)
    assert all(high + 1 == low for (_, high, _), (low, _, _) in itertools.pairwise(bins))
    assert len(bins) <= 8 and bins[0][0] == min(values) and bins[-1][1] == max(values)
    assert [count for *_, count in bins] == [sum(low <= v <= high for v in values) for low, high, _ in bins]


def test_other_columns_can_hold_prompt_and_source_and_a_missing_one_is_named(check):
    assert check([{"prompts": "a", "messages": []}]).kind == "prompts"
    report = check([{"q": "x", "info": {"task": "gsm8k"}}], prompt_key="q", reward_fn_key="info.task")
    assert report.sources == {"gsm8k": 1} and not report.found
    task = {"prompt_key": "question", "reward_fn_key": "task"}
    for asked, missing, fix in [
        ({}, "prompt", "the prompts in --prompt-key"),
        ({"prompt_key": "quest"}, "quest", "the prompts"),
        (task, "task", "the data sources in --reward-fn-key"),
    ]:
        refused(f"'{missing}'; the columns are question. Name the one with {fix}", check, [{"question": "x"}], **asked)


def turns(*contents):
    roles = ("user", "assistant") * len(contents)
    return {"messages": [{"role": role, "content": text} for role, text in zip(roles, contents, strict=False)]}


def test_conversations(check, tokenizer):
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
    rows = [
        turns("hi", "ho"),
        turns("hi", "ho", "and", " "),
        turns("no answer"),
        {"messages": [{"role": "assistant", "content": "first"}]},
        {"messages": None},
        {"messages": [{"role": "user", "content": "use f"}, call, {"role": "assistant", "content": "done"}]},
    ]
    report = check(rows)
    assert report.kind == "conversations"
    assert found(report) == {"duplicate": [1], "empty_answer": [1], "refused": [2, 3, 4]}
    assert "field 'messages' is missing or null" in report.found["refused"]
    assert report.turns == {2: 1, 4: 1, 3: 1} and list(report.lengths["conversation"].values) == [4, 8, 9]
    in_tokens = check(rows[:1], tokenizer=tokenizer, max_length=5)
    ids, _ = ChatRenderer(tokenizer).conversation(rows[0]["messages"])
    assert in_tokens.found == {"over_long": {f"{len(ids)} tokens": [0]}}


def test_pairs(check):
    def dialogue(answer):
        return [{"role": "user", "content": "hi"}, {"role": "assistant", "content": answer}]

    rows = [
        {"prompt": "hi", "chosen": "a", "rejected": "b"},
        {"prompt": "ho", "chosen": "a", "rejected": "a"},
        {"prompt": "hu", "chosen": " ", "rejected": "a"},
        {"prompt": "he", "chosen": 3, "rejected": "a"},
        {"chosen": dialogue("x"), "rejected": dialogue("y")},
        {"prompt": "", "chosen": "a", "rejected": "b"},
    ]
    report = check(rows)
    assert report.kind == check(rows[4:5]).kind == "pairs"
    wrong = {"equal_sides": [1], "empty_answer": [2], "refused": [3], "duplicate": [4], "empty_prompt": [5]}
    assert found(report) == wrong | {"mixed_types": [4, 4]}
    assert list(report.found["empty_answer"]) == ["chosen is empty"]


def test_responses(check):
    rows = [
        row("1", responses=["a", ""], finish_reasons=["stop", "length"], response_log_probs=[-1.0, -2.0]),
        row("2", responses="alone"),
        row("3", responses=[1]),
        row("4", responses=["a", "b"], finish_reasons=["stop"]),
    ]
    report = check(rows)
    assert report.kind == "responses"
    assert found(report) | {"mixed_types": []} == {"empty_response": [0], "refused": [2, 3], "mixed_types": []}
    assert "field 'finish_reasons' has 1 entries for 2 responses" in report.found["refused"]
    assert report.finish_reasons == {"stop": 1, "length": 1} and report.responses == {2: 1, 1: 1}
    assert list(report.lengths["response"].values) == [1, 0, 5]


def test_columns_with_types_nulls_and_mixtures(check):
    rows = [
        row("a", "1", n=1, target=["a", "b"]),
        row("b", 2, n=0.5, tags=[], target=["a", None]),
        row("c", "3", n=None, tags=["x"], only=True, target=["a", 7]),
    ]
    report = check(rows)
    columns = report.columns
    names = ("data_source", "prompt", "reward_model", "reward_model.ground_truth", "n", "target", "tags", "only")
    assert columns.names() == list(names), "what is in lists is not listed"
    assert columns.facts["n"].types == {"integer": 1, "number": 1} and columns.nulls("n") == 1
    assert columns.nulls("only") == 2 and columns.facts["tags"].types == {"list": 1, "list<text>": 1}
    (first, second), numbers = report.found["mixed_types"], list(report.found["mixed_types"].values())
    assert first.startswith("'reward_model.ground_truth' holds text (2, first in row 0), integer (1, first in row 1);")
    assert second.startswith("'target[]' holds text (4, first in row 0), integer (1, first in row 2)")
    assert numbers == [[1], [2]]
    # Objects whose keys are data do not fill the report.
    columns = Columns()
    for i in range(100):
        columns.add({"extra_info": {f"id-{i}": i}})
    assert len(columns.names()) == 1 + MOST_FIELDS and columns.cut == {"extra_info"}


def test_parquet_is_read_in_batches_with_the_same_result(check, tmp_path):
    rows = [row(f"{i % 2000}?", str(i), extra_info={"index": i}) for i in range(2500)]
    path = write_parquet(rows, tmp_path / "rows.parquet")
    seen = []
    report = check_file(describe(str(path)), CheckOptions(), NoJudge(), on_rows=seen.append)
    assert seen == [1024, 1024, 452] and report.rows == report.scored == 2500
    assert report.count("duplicate") == 500 and report.found["duplicate"]["the prompt of row 7"] == [2007]
    as_json = check(rows).to_dict()
    assert {**report.to_dict(), "file": ""} == {**as_json, "file": ""}


def test_the_text_names_a_handful_of_rows_and_the_json_has_everything(check):
    report = CheckReport([check([row("same", "") for _ in range(50)], Strict())])
    text = [line for line, _ in lines(report)]
    assert "  problem: rows that would be refused (25)" in text
    assert "    rows 0, 2, 4 and 22 more: it is even" in text
    assert "  problem: reference answers that fail their own scorer (25)" in text
    assert "    and 20 more rows" in text  # 25 different texts, of which 5 are shown
    assert "    rows 1, 2, 3 and 46 more: the prompt of row 0" in text
    assert text[-1] == summary(report)
    problems = "rows that would be refused (25), reference answers that fail their own scorer (25), empty answers (50)"
    warnings = "rows with a prompt that an earlier row has (49)"
    assert summary(report) == f"1 file, 50 rows: problems: {problems}; warnings: {warnings}"
    report = CheckReport([check([row("same", "") for _ in range(50)], Strict()), check([row("same")], name="b.jsonl")])
    found = json.loads(json.dumps(report.to_dict()))
    first = found["files"][0]
    even = {"text": "it is even", "rows": list(range(0, 50, 2))}
    assert first["problems"]["refused"] == {"count": 25, "what": [even]}
    assert first["warnings"]["duplicate"]["what"][0]["rows"] == list(range(1, 50))
    assert first["lengths"]["prompt"]["histogram"] == [[4, 4, 50]] and first["lengths"]["prompt"]["p95"] == 4
    assert found["overlap"][0]["rows"] == [[0, 0]] and found["problems"]["prompts in two files"] == 1


@pytest.mark.hostile
def test_special_tokens_in_rows_are_a_warning_and_a_template_over_its_budget_ends_the_check(
    check, tokenizer, monkeypatch
):
    report = check([row(), row("2?<|end|>")], tokenizer=tokenizer)
    said = "message 0 (user) has the special token <|end|> in its text"
    assert report.found == {"special_tokens": {said: [1]}} and not FINDINGS["special_tokens"].problem
    talk = [turns("2?<|start|>", "4")]
    assert found(check(talk, tokenizer=tokenizer)) == {"special_tokens": [0]}
    assert found(check(talk)) == {}, "which tokens are special, only a tokenizer knows"
    monkeypatch.setattr("burnish.data.template.BUDGET", -(10**9))
    refused("the chat template of .* takes more than", check, [row()], tokenizer=tokenizer, error=ModelError)


@pytest.mark.hostile
def test_rows_of_long_texts_are_measured(check, tokenizer):
    report = check([row("x" * 3_000_000)], tokenizer=tokenizer, max_length=100)
    assert found(report) == {"over_long": [0]}
    talk = [turns("x" * 3_000_000, "4")]
    assert check(talk, tokenizer=tokenizer).lengths["conversation"].summary()["max"] == 3_000_001


def test_texts_of_a_file_cannot_command_the_terminal_or_begin_a_line(check, capsys):
    forged = "\x1b[2J[red]evil\n1 file, 1 row: no problems"
    print_report(CheckReport([check([row(data_source=forged, **{f"y\n{forged}": 1})], Strict())]))
    out = capsys.readouterr().out
    assert "data sources: \\x1b[2J[red]evil\\n1 file, 1 row: no problems (1)" in out and "\x1b" not in out
    assert [line for line in out.splitlines() if line.startswith("1 file")] == [out.splitlines()[-1]]


def test_every_finding_is_documented():
    page = (Path(__file__).parents[2] / "docs" / "data-check.md").read_text()
    assert all(finding.title in page for finding in FINDINGS.values())
    assert all(title in page for title, _ in KINDS.values())
