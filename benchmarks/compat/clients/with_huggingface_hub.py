"""The `huggingface_hub` InferenceClient: OpenAI-shaped chat and features, and TGI's own text generation."""

from calls import run
from huggingface_hub import InferenceClient

HELLO = [{"role": "user", "content": "What is the capital of France?"}]
FEW = {"max_tokens": 10, "temperature": 0.01, "seed": 3}


class Clients:
    """The same server, spoken to in three ways."""

    def __init__(self, url):
        self.openai = InferenceClient(base_url=f"{url}/v1", api_key="sk-any", timeout=120)
        self.plain = InferenceClient(model=url, timeout=120)
        self.embed = InferenceClient(model=f"{url}/embed", timeout=120)


def streamed(client, model):
    """A stream of OpenAI's chat, its content joined."""
    chunks = list(client.openai.chat.completions.create(model=model, messages=HELLO, stream=True, **FEW))
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


CALLS = {
    "chat": lambda c, m: c.openai.chat.completions.create(model=m, messages=HELLO, **FEW),
    "chat, streamed": streamed,
    "text generation": lambda c, m: c.plain.text_generation("The capital of France is", max_new_tokens=6),
    "text generation, streamed": lambda c, m: list(
        c.plain.text_generation("The capital of France is", max_new_tokens=6, stream=True)
    ),
    "feature extraction": lambda c, m: c.embed.feature_extraction(["a boat", "a mountain"]),
    "no such model": lambda c, m: c.openai.chat.completions.create(model="no-such-model", messages=HELLO),
}

if __name__ == "__main__":
    run(Clients, CALLS)
