"""SentencePiece BPE out of GGUF scores, against the algorithm's definition."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backend.tokenizer import Tokenizer
from backend.weights.gguf_file import GGUFFile
from backend.weights.gguf_tokenizer import gguf_tokenizer

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
PIECES = ["▁", "a", "b", "c", "ab", "bc", "▁a", "abc", "▁ab", "ca", "aa", "▁▁", "cab"]
TOKENS = ["<unk>", "<s>", "</s>", *BYTES, *PIECES]
SCORES = [0.0] * (3 + len(BYTES)) + [-float(index) for index in (20, 21, 22, 23, 1, 2, 0, 5, 4, 3, 7, 6, 8)]
IDS = {token: index for index, token in enumerate(TOKENS)}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path: Path = tmp_path_factory.mktemp("spm") / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(TOKENS)
    writer.add_token_scores(SCORES)
    writer.add_token_types([2, 3, 3, *[6] * len(BYTES), *[1] * len(PIECES)])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_tensor("w", np.zeros((1, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return gguf_tokenizer(GGUFFile(path))


def _by_definition(text: str) -> list[int]:
    """Merge the neighbours whose union scores best, leftmost first, until none is a token; bytes for the rest."""
    pieces = list("▁" + text.replace(" ", "▁"))
    while True:
        unions = [(SCORES[IDS[a + b]], -at) for at, (a, b) in enumerate(pairwise(pieces)) if a + b in IDS]
        if not unions:
            break
        at = -max(unions)[1]
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
    ids: list[int] = []
    for piece in pieces:
        ids += [IDS[piece]] if piece in IDS else [IDS[f"<0x{byte:02X}>"] for byte in piece.encode()]
    return ids


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(alphabet="abc é日", min_size=1, max_size=14))
def test_ids_follow_the_scores(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.encode(text, add_special_tokens=False) == _by_definition(text)
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_texts_begin_with_bos_unless_rendered_by_a_template(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("abc")[0] == 1
    assert tokenizer.encode("abc", add_special_tokens=False)[0] != 1
    assert tokenizer.encode("<s>abc", add_special_tokens=False).count(1) == 1


def test_a_vocabulary_that_is_not_byte_level_does_not_claim_to_know_bytes(tokenizer: Tokenizer) -> None:
    assert tokenizer.token_bytes(IDS["ab"]) is None
