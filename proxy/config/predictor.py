"""Whether and how output lengths are predicted, and what for."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from proxy.config.base import Section

__all__ = ["PredictorConfig", "Use"]

Use = Literal["order", "admit", "route", "hint"]
"""order: policies and packing; admit: admission by the ninth decile; route: work at upstreams; hint: telling them."""


class PredictorConfig(Section):
    """How long answers will be. A prediction decides only while its live record beats saying the usual length."""

    mode: Literal["auto", "off", "history", "learn"] = Field(
        default="auto",
        description="off: nothing is predicted. history: from what the same or similar prompts got. learn: also by a "
        "model trained in a process of its own (extra `predictor`). auto: history where the policy asks for lengths "
        "(sjf, predicted, fair), else off.",
    )
    uses: tuple[Use, ...] = Field(
        default=("order", "admit", "route", "hint"),
        min_length=1,
        description="What for, where the upstreams' profiles allow it. order: who goes next and what fits a batch. "
        "admit: refusing what would be late. route: least predicted work. hint: telling upstreams.",
    )
    min_samples: int = Field(
        default=50,
        ge=20,
        le=100_000,
        description="Outcomes a prediction is compared with before it decides anything.",
    )
    history_keys: int = Field(
        default=20_000, ge=100, le=1_000_000, description="Prompts and templates remembered; about 400 bytes each."
    )
    persist: bool = Field(default=True, description="Whether what was learned is kept where state.path is set.")
    retrain_s: float = Field(
        default=600.0, ge=10.0, le=604_800.0, description="learn: a training is due this long after the last one."
    )
    retrain_after: int = Field(
        default=1_000,
        ge=100,
        le=1_000_000,
        description="learn: or after so many outcomes; trainings take a twentieth of the time at most.",
    )
    min_rows: int = Field(default=300, ge=100, le=16_000, description="learn: no training on fewer outcomes.")
    training_limit_s: float = Field(
        default=60.0, ge=5.0, le=3_600.0, description="learn: a training that takes longer is stopped."
    )
    training_memory_bytes: int = Field(
        default=1_073_741_824, ge=268_435_456, le=68_719_476_736, description="learn: most memory of a training."
    )
