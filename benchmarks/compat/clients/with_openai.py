"""The `openai` client."""

import asyncio

import openai
from calls import run

HELLO = [{"role": "user", "content": "What is the capital of France?"}]
FEW = {"max_tokens": 10, "temperature": 0}


def streamed(client, model):
    """The chunks of a stream; the content is joined, since how it is cut is a matter of timing."""
    options = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = list(client.chat.completions.create(model=model, messages=HELLO, **FEW, **options))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    usage = [chunk.usage for chunk in chunks if chunk.usage]
    return {"text": text, "finish": reasons, "usage": usage[-1:], "first": chunks[0]}


def responses(client, model):
    """A response, streamed: the sequence of its events without repeats, and what they add up to."""
    kinds = []
    with client.responses.create(model=model, input="Say hello.", max_output_tokens=8, stream=True) as stream:
        for event in stream:
            if not kinds or kinds[-1] != event.type:
                kinds.append(event.type)
    return kinds


def at_once(client, model):
    """Eight calls at the same time."""

    async def go():
        async with openai.AsyncOpenAI(base_url=client.base_url, api_key="sk-any", max_retries=0) as many:
            calls = [many.chat.completions.create(model=model, messages=HELLO, **FEW) for _ in range(8)]
            return [answer.choices[0].message.content for answer in await asyncio.gather(*calls)]

    return asyncio.run(go())


def raw(client, model):
    """What the client reads from the head."""
    answer = client.chat.completions.with_raw_response.create(model=model, messages=HELLO, **FEW)
    return {"type": answer.headers.get("content-type"), "has id": bool(answer.headers.get("x-request-id"))}


CALLS = {
    "models": lambda c, m: [each.id for each in c.models.list()],
    "chat": lambda c, m: c.chat.completions.create(model=m, messages=HELLO, **FEW),
    "chat, streamed": streamed,
    "chat, eight at once": at_once,
    "completions": lambda c, m: c.completions.create(model=m, prompt="Once upon", **FEW),
    "completions, two prompts": lambda c, m: c.completions.create(model=m, prompt=["One,", "The sky"], **FEW),
    "responses, streamed": responses,
    "embeddings (base64)": lambda c, m: c.embeddings.create(model=m, input=["a boat", "a mountain"]),
    "embeddings, floats": lambda c, m: c.embeddings.create(model=m, input="a boat", encoding_format="float"),
    "no such model": lambda c, m: c.chat.completions.create(model="no-such-model", messages=HELLO),
    "bad request": lambda c, m: c.chat.completions.create(model=m, messages=[], temperature=-3),
}

if __name__ == "__main__":
    run(lambda url: openai.OpenAI(base_url=f"{url}/v1", api_key="sk-any", max_retries=0, timeout=120), CALLS)
