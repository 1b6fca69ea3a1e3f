"""Prompts and answers to measure costs by where there is no data: sizes and repeats as in AlpacaEval, no meaning."""

from __future__ import annotations

import random

from benchmarks.predictor.alpaca import Answer

__all__ = ["made_up"]

_PROMPTS, _MODELS = 805, 6
_SYLLABLES = ("ba", "ce", "di", "fo", "gu", "ha", "ke", "li", "mo", "nu", "pra", "ster")


def made_up(seed: int = 0) -> list[Answer]:
    """Return answers of six models to 805 prompts, in random order; the longer the prompt, the longer the answer."""
    rng = random.Random(seed)
    words = ["".join(rng.choices(_SYLLABLES, k=rng.randint(1, 4))) for _ in range(2000)]
    answers = []
    for prompt in range(_PROMPTS):
        text = rng.choices(words, k=min(400, int(5 + rng.lognormvariate(3.0, 0.9))))
        for model in range(_MODELS):
            tokens = 1 + int(8 * len(text) * (1 + 0.2 * model) * rng.lognormvariate(0.0, 0.3))
            answers.append(Answer(prompt, f"model-{model}", " ".join(text), int(1.5 * len(text)), tokens))
    rng.shuffle(answers)
    return answers
