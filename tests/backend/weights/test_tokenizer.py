"""Ids, texts and chat prompts equal those of transformers."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from backend.models.errors import ModelError
from backend.tokenizer import Tokenizer
from backend.weights.gguf_file import GGUFFile
from backend.weights.gguf_tokenizer import gguf_tokenizer
from backend.weights.locate import locate_model
from tests.backend.models.checkpoints import tiny_tokenizer
from tests.support.late import late

transformers = late("transformers")

TEXTS = (
    "The capital of France is Paris.",
    "2024-11-29 costs 1234567 euros, don't you know?",
    "  leading and   inner spaces \n\n\ttabs",
    "日本語のテキスト と emoji 🙂👩‍👩‍👧 zwj",
    "<|im_start|>user\nHi<|im_end|>\n",
    "naïve café, Ελληνικά, العربية, ไทย",
    "def f(x):\n    return x**2  # comment\n",
    "",
)

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi <b>there</b> & 'you'"},
    {"role": "assistant", "content": "Hello!"},
    {"role": "user", "content": "日本?"},
]


@pytest.fixture(scope="module")
def demo() -> Tokenizer:
    try:
        return gguf_tokenizer(GGUFFile(locate_model("demo")))
    except ModelError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def reference() -> Any:
    try:
        path = locate_model("demo")
    except ModelError as error:
        pytest.skip(str(error))
    return transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)


@pytest.mark.slow
@pytest.mark.parametrize("text", TEXTS)
def test_the_demo_tokenizer_gives_the_ids_of_transformers(demo: Tokenizer, reference: Any, text: str) -> None:
    assert demo.encode(text, add_special_tokens=False) == reference.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("text", TEXTS)
def test_decoding_undoes_encoding(demo: Tokenizer, text: str) -> None:
    assert demo.decode(demo.encode(text), skip_special_tokens=False) == text


@pytest.mark.parametrize("text", [*TEXTS, " " * 160 + "#" * 80, "\U00040000\x04" * 9, "a" * 4000])
def test_the_demo_tokenizer_knows_a_bound_that_no_text_falls_below(demo: Tokenizer, text: str) -> None:
    tokens = len(demo.encode(text))
    assert (len(text) >= 4000) <= demo.least_tokens(text) <= tokens


@pytest.mark.parametrize("way", ["encode", "decode"])
def test_other_threads_go_on_while_a_long_text_is_tokenised_or_made(demo: Tokenizer, way: str) -> None:
    text = "the quick brown fox " * 50_000
    work = partial(demo.encode, text) if way == "encode" else partial(demo.decode, demo.encode(text) * 2)
    with ThreadPoolExecutor(1) as thread:
        under_way = [thread.submit(work) for _ in range(4)]
        turns = 0
        while not under_way[-1].done():
            time.sleep(0.001)
            turns += 1
    assert turns >= 20


def test_digits_are_single_tokens(demo: Tokenizer) -> None:
    assert [demo.id_to_token(index) for index in demo.encode("4096")] == ["4", "0", "9", "6"]


def test_token_bytes_spell_the_text(demo: Tokenizer) -> None:
    for text in TEXTS:
        pieces = [demo.token_bytes(index) for index in demo.encode(text)]
        assert b"".join(piece for piece in pieces if piece is not None).decode() == text


TEMPLATE = """{%- if tools %}
    {{- '<tools>' + tools | tojson(indent=2) + '</tools>' }}
{%- endif %}
{{ bos_token }}
{% for message in messages %}
    {%- if message.role == 'tool' %}{% continue %}{% endif %}
    {{- '[' + message.role + ']' + message.content | trim }}
    {% generation %}{{ message.content | tojson }}{% endgeneration %}

{% endfor %}
{%- if add_generation_prompt %}[assistant]{% endif %}
{%- if thinking is defined and thinking %}<think>{% endif %}
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    tiny_tokenizer().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "bos_token": "<s>",
                "eos_token": {"__type": "AddedToken", "content": "</s>", "special": True},
                "chat_template": TEMPLATE,
            }
        )
    )
    return tmp_path


@pytest.mark.parametrize("prompted", [True, False])
@pytest.mark.parametrize("tools", [None, [{"type": "function", "function": {"name": "f", "description": "a < b ü"}}]])
def test_chat_prompts_equal_those_of_transformers(
    directory: Path, tools: list[dict[str, Any]] | None, prompted: bool
) -> None:
    theirs = transformers.AutoTokenizer.from_pretrained(directory)
    ours = Tokenizer.from_directory(directory)
    arguments: dict[str, Any] = {"tools": tools, "add_generation_prompt": prompted, "thinking": prompted}
    want = theirs.apply_chat_template(MESSAGES, tokenize=False, **arguments)
    assert ours.apply_chat_template(MESSAGES, **arguments) == want


def test_the_demo_template_renders_as_in_transformers(demo: Tokenizer, reference: Any) -> None:
    want = reference.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
    assert demo.apply_chat_template(MESSAGES) == want


def test_named_templates_are_chosen_by_the_presence_of_tools(directory: Path) -> None:
    config = json.loads((directory / "tokenizer_config.json").read_text())
    config["chat_template"] = [
        {"name": "default", "template": "plain"},
        {"name": "tool_use", "template": "with tools"},
    ]
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer.from_directory(directory)
    assert tokenizer.apply_chat_template(MESSAGES) == "plain"
    assert tokenizer.apply_chat_template(MESSAGES, tools=[{"name": "f"}]) == "with tools"


def test_a_template_file_wins_over_the_config(directory: Path) -> None:
    (directory / "chat_template.jinja").write_text("from the file")
    assert Tokenizer.from_directory(directory).apply_chat_template(MESSAGES) == "from the file"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "append"),
        ("{% for %}", "line 1"),
        ("{{ messages[9].content }}", "no element 9"),
    ],
)
def test_a_template_that_fails_says_why(directory: Path, template: str, message: str) -> None:
    (directory / "chat_template.jinja").write_text(template)
    with pytest.raises(ModelError, match=message):
        Tokenizer.from_directory(directory).apply_chat_template(MESSAGES)


def test_a_model_without_a_template_says_so(tmp_path: Path) -> None:
    tiny_tokenizer().save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.from_directory(tmp_path)
    assert tokenizer.chat_template is None
    with pytest.raises(ModelError, match="no chat template"):
        tokenizer.apply_chat_template(MESSAGES)
