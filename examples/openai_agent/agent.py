"""A plain program as an agent: the OpenAI client in its own loop; nothing here knows about training.

It asks a question until the answer is right, twice at most, and returns the reward: less for the second attempt.
Against a model that only answers: `burnish serve burnish/models/nano`, then `python3 examples/openai_agent/agent.py`.
"""

import openai

HTTP = openai.DefaultHttpxClient()  # one for all trajectories: to make one takes longer than a call


def main(base_url, api_key, row, attempts=2):  # `attempts` comes from loops.yaml
    client = openai.OpenAI(base_url=base_url, api_key=api_key, http_client=HTTP)
    model = client.models.list().data[0].id
    messages = list(row["messages"])
    for attempt in range(attempts):
        answer = client.chat.completions.create(model=model, messages=messages).choices[0].message.content
        if answer.rpartition("answer:")[2].strip() == row["reward_model"]["ground_truth"]:
            return 1 / (attempt + 1)
        # The reply is sent back unchanged, so that the call continues the conversation.
        messages += [{"role": "assistant", "content": answer}, *row["messages"]]
    return 0


if __name__ == "__main__":
    question = {"messages": [{"role": "user", "content": "347+586=?"}], "reward_model": {"ground_truth": "933"}}
    print("reward", main("http://127.0.0.1:8001/v1", "none", question))
