"""Functions that take lists, in a scoring process: one call for all samples, and what becomes of each."""

import os

import pytest

from burnish.rewards.contract import ScoreRequest

LENGTHS = """
    import os
    calls = 0
    {form} compute_score(data_sources, solution_strs, ground_truths, extra_infos, bonus=0):
        global calls
        calls += 1
        return [
            {{"score": len(text) + bonus, "mean": sum(map(len, solution_strs)) / len(solution_strs),
              "calls": calls, "pid": os.getpid(), "source": source, "truth": truth, "info": info}}
            for source, text, truth, info in zip(data_sources, solution_strs, ground_truths, extra_infos)
        ]
    """


def requests(*texts: str) -> list[ScoreRequest]:
    return [ScoreRequest(f"s{i}", text, i, {"i": i}, index=i) for i, text in enumerate(texts)]


@pytest.mark.parametrize("form", ["def", "async def"])
def test_all_samples_go_in_one_call_to_another_process(make_pool, form):
    pool = make_pool(LENGTHS.format(form=form), reward_kwargs={"bonus": 10}, num_workers=2)
    results = pool.submit_all(requests("a", "bb", "cccccc")).result()
    assert [result.score for result in results] == [11, 12, 16]
    assert [result.data_source for result in results] == ["s0", "s1", "s2"]
    assert {result.info["mean"] for result in results} == {3.0}
    assert {result.info["calls"] for result in results} == {1} and results[0].info["pid"] != os.getpid()
    facts = [(r.info["source"], r.info["truth"], r.info["info"]) for r in results]
    assert facts == [("s0", 0, {"i": 0}), ("s1", 1, {"i": 1}), ("s2", 2, {"i": 2})]
    assert pool.batch and pool.required == {"data_source", "solution_str", "ground_truth", "extra_info"}


def test_one_sample_is_a_list_of_one(make_pool):
    pool = make_pool(LENGTHS.format(form="def"))
    assert pool.submit(requests("abc")[0]).result().score == 3
    assert pool.submit_all([]).result() == []


def test_many_samples_of_a_function_for_one_are_scored_each_by_itself(make_pool):
    pool = make_pool("def compute_score(solution_str): return 1 / (len(solution_str) - 1)")
    first, second, third = pool.submit_all(requests("aa", "b", "ccc")).result()
    assert (first.score, third.score) == (1.0, 0.5) and "ZeroDivisionError" in second.error
    assert pool.batch is False


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "return [1.0]",
            "compute_score of {path} returned 1 results for 3 samples; return a list with a result for ea",
        ),
        ("return None", "compute_score of {path} returned None for 3 samples"),
        ("return {'score': 1}", "compute_score of {path} returned {{'score': 1}} (dict) for 3 samples"),
        ("raise KeyError('unit')", "KeyError: 'unit'"),
    ],
)
@pytest.mark.parametrize("form", ["def", "async def"])
def test_a_call_that_fails_fails_all_its_samples_with_the_cause(make_pool, form, body, said):
    pool = make_pool(f"{form} compute_score(solution_strs): {body}")
    results = pool.submit_all(requests("a", "b", "c")).result()
    assert [result.score for result in results] == [None] * 3
    assert all(said.format(path=pool.spec.path) in result.error for result in results)
    assert [(result.index, result.response) for result in results] == [(0, "a"), (1, "b"), (2, "c")]


def test_a_call_is_tried_again_as_a_whole(make_pool):
    source = """
        calls = 0
        def compute_score(solution_strs):
            global calls
            calls += 1
            return [calls] * (len(solution_strs) if calls > 2 else 1)
        """
    texts = requests("a", "b")
    assert [r.score for r in make_pool(source, retries=1).submit_all(texts).result()] == [None, None]
    assert [r.score for r in make_pool(source, retries=2).submit_all(texts).result()] == [3.0, 3.0]


def test_one_result_that_is_no_score_fails_its_sample_only(make_pool):
    pool = make_pool("def compute_score(solution_strs): return [1.0, float('nan'), {'acc': 1}]", retries=1)
    good, nan, no_score = pool.submit_all(requests("a", "b", "c")).result()
    assert good.score == 1.0 and good.error is None
    assert f"compute_score of {pool.spec.path}, for sample 1, returned nan; return a finite number" in nan.error
    assert "for sample 2, returned a dict without \"score\" (keys: ['acc'])" in no_score.error


def test_the_time_limit_grows_with_the_number_of_samples(make_pool):
    pool = make_pool(
        "import time\ndef compute_score(solution_strs): time.sleep(2.5); return [1.0] * len(solution_strs)"
    )
    pool.check()
    pool.timeout = 2.0
    assert [r.score for r in pool.submit_all(requests(*"abcd")).result()] == [1.0] * 4


def test_a_call_that_hangs_says_how_long_it_was_waited_for(make_pool):
    pool = make_pool("import time\ndef compute_score(solution_strs): time.sleep(1000)", timeout=0.2)
    results = pool.submit_all(requests("a", "b")).result()
    assert {r.error for r in results} == {"timed out: no scores of 2 samples within 2 × reward.timeout=0.2 s"}


def test_a_row_that_cannot_travel_fails_the_call(make_pool):
    pool = make_pool("def compute_score(solution_strs): return [1.0] * len(solution_strs)")
    odd = ScoreRequest("s", "a", None, {"callback": lambda: 0})
    assert all(
        "cannot be sent to the scoring process" in r.error for r in pool.submit_all([odd, *requests("b")]).result()
    )


def test_a_class_with_state_in_the_batch_form(make_pool):
    pool = make_pool(
        """
        class Seen:
            def __init__(self, first): self.seen = first
            def __call__(self, solution_strs):
                self.seen += len(solution_strs)
                return [self.seen] * len(solution_strs)
        """,
        name="Seen",
        reward_kwargs={"first": 10},
    )
    assert [r.score for r in pool.submit_all(requests("a", "b")).result()] == [12, 12]
    assert [r.score for r in pool.submit_all(requests("c")).result()] == [13]
