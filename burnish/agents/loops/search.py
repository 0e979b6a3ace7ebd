"""`search_agent`: the policy reasons, searches, reads what was found, and answers, all within one turn.

    <think>…</think> <search> query </search> → <information>Doc 1(Title: t) text…</information> → … <answer>…</answer>

A search is answered with what the retriever found, cut to `data.max_obs_length` tokens, with mask 0 and its tags broken
up (`observation.py`); an answer ends the trajectory; anything else gets `NOTICE`. Each takes one of `max_turns` turns,
after which the policy writes once more, without searching. Where what was found does not fit, the trajectory ends.

How it differs from the agent of the field, whose results the tests hold: nothing is decoded and tokenised again, so the
token that completes a closing tag is trained as it was sampled; an empty query is no valid search; and where the policy
ended its turn without an action, the notice comes as a message of the user, because text cannot follow the end of a
turn.
"""

import re
import time
from typing import Any

from burnish.agents.base import AgentLoopBase, AgentLoopOutput
from burnish.agents.observation import passages
from burnish.rollout.base import Completion
from burnish.search.client import Document

STOPS = ("</search>", "</answer>")
NOTICE = (
    "\nMy previous action is invalid. If I want to search, I should put the query between <search> and </search>. "
    "If I want to give the final answer, I should put the answer between <answer> and </answer>. Let me try again.\n"
)
_ACTION = re.compile(r"<(search|answer)>(.*?)</\1>", re.DOTALL)


def read_action(text: str) -> tuple[str, str]:
    """The first pair of tags in a turn: `search`, `answer` or `invalid`, and what is between them."""
    found = _ACTION.search(text)
    kind, content = (found[1], found[2].strip()) if found else ("invalid", "")
    return kind if content or kind == "answer" else "invalid", content


class SearchAgentLoop(AgentLoopBase):
    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        transcript = self.transcript(self.prompt_ids(row["messages"]))
        stops = (*sampling_params.get("stop", ()), *STOPS)
        actions: list[str] = []
        retrieved: list[str] = []
        seconds = 0.0
        for turns_left in range(self.environment.settings.max_turns, -1, -1):
            completion = await transcript.sample(sampling_params, stop=stops)
            action, content = read_action(self.text(completion))
            actions.append(action)
            if action == "answer" or not turns_left:
                break
            if action == "search":
                start = time.perf_counter()
                documents = await self.environment.retriever.search(content)
                seconds += time.perf_counter() - start
                retrieved.append("\n".join(document.contents for document in documents))
                observation = self.information(documents)
            else:
                observation = self.notice(completion)
            if not transcript.observe(observation):
                break
        valid = len(actions) - actions.count("invalid")
        observed = len(transcript.mask) - sum(transcript.mask)
        return transcript.output(
            num_turns=2 * len(actions),
            metrics={
                "num_tool_calls": len(retrieved),
                "env/number_of_actions": len(actions),
                "env/finish_ratio": float(actions[-1] == "answer"),
                "env/number_of_valid_action": valid,
                "env/ratio_of_valid_action": valid / len(actions),
                "env/number_of_valid_search": len(retrieved),
                "env/searched": float(len(retrieved) > 0),
                "state_tokens/total": observed,
                "state_tokens/coverage": observed / len(transcript.mask),
                "retrieval/seconds": seconds,
            },
            extra_fields={"retrieved": retrieved},
        )

    def information(self, documents: list[Document]) -> list[int]:
        """What was found, between its tags: whole documents in rank order, and the start of the first that would make
        it longer than `data.max_obs_length`."""
        settings = self.environment.settings
        markers, limit = settings.state_masking, settings.data.max_obs_length
        opening, closing = f"\n\n{markers.start_state_marker}", f"{markers.end_state_marker}\n\n"
        observations = self.environment.observations
        text = observations.harmless(passages(documents))
        ids = observations.ids(opening + text + closing)
        if limit is None or len(ids) <= limit:
            return ids
        end = observations.ids(closing)
        return observations.ids(opening + text)[: max(limit - len(end), 0)] + end

    def notice(self, completion: Completion) -> list[int]:
        """That the last action is none, in the same turn, or where that is over, as a message of the user."""
        if self.has_ended(completion):
            self.environment.warn_of_differences("user")
            return self.environment.chat_turns.after([{"role": "user", "content": NOTICE.strip()}], ended=True)
        return self.environment.observations.ids(NOTICE)
