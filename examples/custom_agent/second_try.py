"""A custom agent loop: the policy answers, is asked again, and its last answer counts.

A loop is made for one trajectory. Token ids are kept as they were sampled and never rendered again; what the loop adds
itself carries mask 0, so it is neither trained on nor scored. Seeds and limits come with `sampling_params`.
The embedded model has never seen a second turn, so its second answers are poor at first.
"""

from burnish.agents import AgentLoopBase, AgentLoopOutput


class SecondTry(AgentLoopBase):
    def __init__(self, *, tries=2, **parts):  # `tries` comes from loops.yaml
        super().__init__(**parts)
        self.tries = tries

    async def run(self, sampling_params, **row):
        prompt = self.prompt_ids(row["messages"])
        response, mask, log_probs, turns = [], [], [], 0
        for _ in range(self.tries):
            question = prompt if response else []  # asked again, after an answer
            room = self.config.data.max_response_length - len(response) - len(question)
            if room < 1:
                break
            answer = await self.server_manager.generate(
                prompt_ids=[*prompt, *response, *question], sampling_params={**sampling_params, "max_tokens": room}
            )
            response += [*question, *answer.token_ids]
            mask += [0] * len(question) + [1] * len(answer.token_ids)
            log_probs += [0.0] * len(question) + answer.log_probs
            turns += 2  # the question and the answer
        return AgentLoopOutput(prompt, response, mask, log_probs, num_turns=turns)
