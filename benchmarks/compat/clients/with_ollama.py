"""The `ollama` client."""

import ollama
from calls import run

HELLO = [{"role": "user", "content": "What is the capital of France?"}]
FEW = {"num_predict": 8, "temperature": 0}


def streamed(client, model):
    """A stream, its content joined, and the last line."""
    lines = list(client.chat(model=model, messages=HELLO, options=FEW, stream=True))
    return {"text": "".join(line.message.content or "" for line in lines), "last": lines[-1]}


CALLS = {
    "list": lambda c, m: c.list(),
    "show": lambda c, m: c.show(m),
    "chat": lambda c, m: c.chat(model=m, messages=HELLO, options=FEW),
    "chat, streamed": streamed,
    "generate": lambda c, m: c.generate(model=m, prompt="The capital of France is", options=FEW),
    "embed": lambda c, m: c.embed(model=m, input=["a boat", "a mountain"]),
    "no such model": lambda c, m: c.chat(model="no-such-model", messages=HELLO),
}

if __name__ == "__main__":
    run(lambda url: ollama.Client(host=url, timeout=120), CALLS)
