"""What every hosted engine must do, as tests that each one takes up with its own marks and its own program.

`class TestContract(HostedContract)` runs them all; the `engine` of the folder has the weights of `module` as version 1.
"""

import asyncio

import pytest
import torch

from burnish.errors import RolloutError
from burnish.rollout.base import Request, Sampling
from burnish.rollout.hf.engine import HFEngine
from tests.rollout.asking import start


def some_ids(count):
    return [(7 * i) % 250 + 3 for i in range(count)]


PROMPT = [58, 47, 26, 29, 6, 9]
LONG = some_ids(300)  # more than two blocks of keys and values
CLOSE = dict(abs=2e-4)


def one(engine, sampling, prompt=PROMPT):
    (completion,) = engine.run([(prompt, sampling)])
    return completion


def assert_alike(completion, wanted):
    assert (completion.token_ids, completion.finish_reason) == (wanted.token_ids, wanted.finish_reason)
    assert completion.stop == wanted.stop
    assert completion.log_probs == pytest.approx(wanted.log_probs, **CLOSE)


class HostedContract:
    # What is sampled, and its log-probs

    @pytest.mark.parametrize("temperatures", [[0.0], [0.6], [1.0], [1.7], [0.0, 0.5, 1.0, 2.0] * 4], ids=str)
    def test_log_probs_are_those_of_the_module(self, engine, module, expected, temperatures):
        """Also with different temperatures in one batch."""
        samplings = [Sampling(t, max_tokens=40, seed=3 + i, ignore_eos=True) for i, t in enumerate(temperatures)]
        completions = engine.run([(PROMPT, sampling) for sampling in samplings])
        for completion, temperature in zip(completions, temperatures, strict=True):
            assert len(completion.token_ids) == 40 and completion.finish_reason == "length"
            assert completion.log_probs == pytest.approx(expected(module, PROMPT, completion, temperature), **CLOSE)

    @pytest.mark.parametrize("ignore_eos", [False, True], ids=["until it ends", "until the limit"])
    def test_greedy_is_what_the_hf_engine_takes(self, engine, module, tokenizer, ignore_eos):
        sampling = Sampling(temperature=0, max_tokens=30, ignore_eos=ignore_eos)
        assert_alike(one(engine, sampling), one(HFEngine(module, tokenizer), sampling))

    def test_the_context_can_be_filled_to_its_end(self, engine, module, tokenizer, context):
        prompt, sampling = some_ids(context - 220), Sampling(temperature=0, ignore_eos=True)
        completion = one(engine, sampling, prompt)
        assert (len(completion.token_ids), completion.finish_reason) == (220, "length")
        assert_alike(completion, one(HFEngine(module, tokenizer), sampling, prompt))

    @pytest.mark.parametrize(
        ("truncation", "most"),
        [(dict(top_k=2), 2), (dict(top_p=0.3), None), (dict(min_p=0.5), None), (dict(top_k=4, top_p=0.8), 4)],
        ids=str,
    )
    def test_truncated_sampling_leaves_tokens_out_and_log_probs_whole(
        self, engine, module, teacher, expected, truncation, most
    ):
        sampling = Sampling(temperature=1.3, max_tokens=60, seed=11, ignore_eos=True, **truncation)
        completion = one(engine, sampling)
        assert completion.log_probs == pytest.approx(expected(module, PROMPT, completion, 1.3), **CLOSE)
        rows = teacher(module, [*PROMPT, *completion.token_ids], 1.3)[len(PROMPT) - 1 :]
        for row, token_id in zip(rows, completion.token_ids, strict=True):
            above = row[row > row[token_id]]  # those that are likelier
            assert len(above) < (most or len(row))
            assert above.exp().sum() <= sampling.top_p + 1e-4
            assert row[token_id] - row.max() >= torch.tensor(sampling.min_p).log() - 1e-4

    def test_tokens_are_as_frequent_as_their_probabilities_say(self, engine, module, teacher):
        """Those of the four likeliest and the rest, within four standard deviations."""
        count = 800
        completions = engine.run([(PROMPT, Sampling(temperature=0.7, max_tokens=1, seed=i)) for i in range(count)])
        probabilities = teacher(module, [*PROMPT, 0], 0.7)[-1].exp()
        likeliest = probabilities.topk(4).indices.tolist()
        drawn = [completion.token_ids[0] for completion in completions]
        for token_id in likeliest:
            p = probabilities[token_id].item()
            assert drawn.count(token_id) / count == pytest.approx(p, abs=4 * (p * (1 - p) / count) ** 0.5)
        rest = 1 - probabilities[likeliest].sum().item()
        others = sum(token_id not in likeliest for token_id in drawn)
        assert others / count == pytest.approx(rest, abs=4 * (rest * (1 - rest) / count) ** 0.5)

    def test_a_seed_says_what_is_sampled_whatever_else_runs(self, engine):
        samplings = [Sampling(max_tokens=20, seed=seed, ignore_eos=True) for seed in (2**63 + 5, 1, 2, 2**64 - 1)]
        alone = [one(engine, sampling).token_ids for sampling in samplings]
        together = engine.run([(PROMPT, sampling) for sampling in [*samplings, *samplings]])
        assert [completion.token_ids for completion in together] == alone * 2
        assert len({tuple(token_ids) for token_ids in alone}) == len(samplings)

    # Where completions end

    def test_stops_are_those_of_the_hf_engine(self, engine, module, tokenizer):
        greedy = one(engine, Sampling(temperature=0, max_tokens=30, ignore_eos=True))
        text = tokenizer.decode(greedy.token_ids)
        ends = [
            Sampling(temperature=0, max_tokens=30, stop_token_ids=(greedy.token_ids[7],)),
            Sampling(temperature=0, max_tokens=30, stop_token_ids=(greedy.token_ids[7],), ignore_eos=True),
            Sampling(temperature=0, max_tokens=30, stop=(text[9:11],), ignore_eos=True),
            Sampling(temperature=0, max_tokens=30, stop=("never in here", text[5]), ignore_eos=True),
        ]
        reference = HFEngine(module, tokenizer)
        for sampling in ends:
            wanted = one(reference, sampling)
            assert wanted.finish_reason == "stop", "else this tests nothing"
            assert_alike(one(engine, sampling), wanted)

    # Requests

    def test_ids_are_used_as_they_are_and_streamed(self, engine, module, tokenizer, expected):
        """Bytes that are no text: decoded and encoded again they would be others."""
        prompt = [tokenizer.convert_tokens_to_ids("Ã")] * 3 + [1, 0, 2]
        assert tokenizer.encode(tokenizer.decode(prompt)) != prompt
        sampling, told = Sampling(max_tokens=15, seed=5, ignore_eos=True), []
        silent = one(engine, sampling, prompt)
        assert silent.log_probs == pytest.approx(expected(module, prompt, silent), **CLOSE)

        asked = Request(prompt, sampling, request_id="told")
        completion = asyncio.run(engine.generate(asked, lambda *token: told.append(token)))
        assert told == list(zip(completion.token_ids, completion.log_probs, strict=True))
        assert_alike(completion, silent)

    def test_an_abort_gives_what_there_is_and_leaves_others_alone(self, engine, context):
        """Also of a request whose tokens are not told as they come; one whose id begins alike goes on."""
        sampling = Sampling(seed=1, ignore_eos=True)

        async def ask():
            begun, tokens = asyncio.Event(), []

            def note(*token):
                tokens.append(token)
                if len(tokens) == 8:  # all run by then
                    begun.set()

            tasks = [start(engine, "1", PROMPT, sampling, on_token=note)]
            tasks += [start(engine, name, PROMPT, sampling) for name in ("2", "10")]
            await begun.wait()
            engine.abort("1")
            engine.abort("2")
            return await asyncio.gather(*tasks)

        *aborted, left = asyncio.run(ask())
        for completion in aborted:
            assert completion.finish_reason == "abort"
            assert 0 < len(completion.token_ids) < context - len(PROMPT)
            assert len(completion.log_probs) == len(completion.token_ids)
        assert (left.finish_reason, len(left.token_ids)) == ("length", context - len(PROMPT))

    # Weights

    def test_new_weights_are_used_and_a_canary_tells_old_ones(self, engine, module, other, buckets, teacher, expected):
        def values(of):
            return [row[i].item() for row, i in zip(teacher(of, LONG), LONG[1:], strict=True)]

        own, new = values(module), values(other)
        assert engine.log_probs_of(LONG) == pytest.approx(own, abs=5e-4)
        assert engine.log_probs_of(LONG) != pytest.approx(new, abs=0.1)
        engine.publish(buckets(other), 2)
        assert engine.log_probs_of(LONG) == pytest.approx(new, abs=5e-4)
        for prompt in (PROMPT, LONG):
            completion = one(engine, Sampling(max_tokens=20, seed=1, ignore_eos=True), prompt)
            assert completion.policy_version == 2
            assert completion.log_probs == pytest.approx(expected(other, prompt, completion), **CLOSE)

    def test_keys_and_values_of_old_weights_are_forgotten(self, engine, other, buckets, tokenizer):
        """The second request begins as the first did, which the program has kept."""
        sampling = Sampling(temperature=0, max_tokens=5, ignore_eos=True)
        one(engine, sampling, LONG)
        engine.publish(buckets(other), 2)
        assert_alike(one(engine, sampling, LONG), one(HFEngine(other, tokenizer), sampling, LONG))

    @pytest.mark.parametrize("is_told", [True, False])
    def test_requests_continue_with_new_weights(self, engine, module, other, buckets, teacher, context, is_told):
        async def ask():
            told, begun = [], asyncio.Event()
            sampling = Sampling(seed=6, ignore_eos=True)

            def tell(*token):
                told.append(token)
                if len(told) == 50:  # by then the second, of which nothing is told, has some too
                    begun.set()

            calls = [start(engine, "first", PROMPT, sampling, on_token=tell)]
            if not is_told:
                calls.append(start(engine, "second", PROMPT, sampling))
            await begun.wait()
            await asyncio.to_thread(engine.publish, buckets(other), 2)
            return await asyncio.gather(*calls)

        completion = asyncio.run(ask())[-1]
        versions = completion.token_versions()
        assert completion.finish_reason == "length" and len(completion.token_ids) == context - len(PROMPT)
        assert set(versions) == {1, 2} and versions == sorted(versions), "some tokens of each, the old ones first"
        assert completion.policy_version == 1
        ids = [*PROMPT, *completion.token_ids]
        rows = {version: teacher(of, ids)[len(PROMPT) - 1 :] for version, of in ((1, module), (2, other))}
        wanted = [rows[v][k, i].item() for k, (v, i) in enumerate(zip(versions, completion.token_ids, strict=True))]
        assert completion.log_probs == pytest.approx(wanted, abs=5e-4)

    def test_a_weight_that_nothing_is_loaded_into_is_named(self, engine, module, buckets):
        """Programs pass over names that they do not know; here one is given only some of the files."""
        engine.weights.write(buckets(module), 2)
        (said,) = engine.process.call("load", [str(engine.weights.files[0])], 2)
        assert "model.norm.weight" in said["absent"]
        assert "model.embed_tokens.weight" not in said["absent"]

    def test_asleep_it_refuses_requests_and_weights(self, engine, module, buckets):
        engine.sleep()
        with pytest.raises(RolloutError, match="the engine sleeps"):
            one(engine, Sampling(max_tokens=1))
        with pytest.raises(RolloutError, match="while the engine sleeps"):
            engine.publish(buckets(module), 2)
        engine.wake()
        assert len(one(engine, Sampling(max_tokens=2, ignore_eos=True)).token_ids) == 2
