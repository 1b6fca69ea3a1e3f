"""The `anthropic` client."""

import anthropic
from calls import run

ASKED = {
    "max_tokens": 10,
    "extra_body": {"temperature": 0},
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
}


def streamed(client, model):
    """The events of a stream, and the message they add up to."""
    kinds = []
    with client.messages.stream(model=model, **ASKED) as stream:
        for event in stream:
            if not kinds or kinds[-1] != event.type:
                kinds.append(event.type)
        return {"events": kinds, "message": stream.get_final_message()}


CALLS = {
    "messages": lambda c, m: c.messages.create(model=m, **ASKED),
    "messages, streamed": streamed,
    "count tokens": lambda c, m: c.messages.count_tokens(model=m, messages=ASKED["messages"]),
    "no such model": lambda c, m: c.messages.create(model="no-such-model", **ASKED),
}

if __name__ == "__main__":
    key = {"x-api-key": "sk-any"}
    run(
        lambda url: anthropic.Anthropic(
            base_url=url, api_key="sk-any", default_headers=key, max_retries=0, timeout=120
        ),
        CALLS,
    )
