"""What the page on security shows can be typed in."""

from __future__ import annotations

import re
from pathlib import Path

import yaml
from click.testing import CliRunner

from proxy.access.limits import Allowance, Bucket
from proxy.cli import main
from proxy.config.model import Config
from proxy.observe.metrics import SHED_REASONS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "security.md").read_text()


def test_the_examples_are_valid() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        assert Config.model_validate(yaml.safe_load(block)).pools


def test_the_command_shown_exists() -> None:
    assert "trimtab config hash-key" in PAGE
    assert CliRunner().invoke(main, ["config", "hash-key"], input="a-key-of-enough-characters").exit_code == 0


def test_every_reason_of_a_limit_is_listed() -> None:
    spent = [
        Allowance(requests=None, tokens=None, max_inflight=1),
        Allowance(requests=Bucket(1.0, 1.0, 0.0), tokens=None, max_inflight=None),
        Allowance(requests=None, tokens=Bucket(1.0, 1.0, 0.0), max_inflight=None),
    ]
    for allowance in spent:
        assert allowance.admit(1.0, 0.0) is None
        refusal = allowance.admit(1.0, 0.0)
        assert refusal is not None
        assert f"| `{refusal.reason}` |" in PAGE
        assert refusal.reason in SHED_REASONS
