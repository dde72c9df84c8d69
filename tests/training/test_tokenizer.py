from pathlib import Path

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from unmask.training.tokenizer import SPECIAL_TOKENS, save_tokenizer, train_tokenizer

TEXTS = ["Tom has 12 apples.\n12 + 30 = 42\n#### 42", "def add(x, y):\n    return x + y", "1203\n4321"] * 5


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(TEXTS, vocab_size=512)


def pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.decode([token], skip_special_tokens=False) for token in tokenizer.encode(text).ids]


def test_special_tokens_come_first(tokenizer: Tokenizer) -> None:
    assert [tokenizer.token_to_id(token) for token in SPECIAL_TOKENS] == [0, 1, 2, 3]


def test_numbers_to_99_are_one_token_and_longer_runs_are_digits(tokenizer: Tokenizer) -> None:
    for number in range(100):
        assert pieces(tokenizer, str(number)) == [str(number)]
    assert pieces(tokenizer, "1203\n12") == ["1", "2", "0", "3", "\n", "12"]


def test_a_number_is_the_same_token_everywhere(tokenizer: Tokenizer) -> None:
    token = tokenizer.token_to_id("42")
    for text in ("42", "x = 42", "42 + 1", "- 42", "(42)", "\n42"):
        assert token in tokenizer.encode(text).ids


def test_a_name_is_the_same_tokens_after_def_and_in_a_prompt(tokenizer: Tokenizer) -> None:
    assert pieces(tokenizer, "def add(")[1:] == pieces(tokenizer, "add(")


@pytest.mark.parametrize(
    "text", [*TEXTS[:3], "caf\u00e9 \u4f60\u597d \U0001f600", "a\t b  \n\n c ", "x //= 2 ** 3 != -1", ""]
)
def test_every_text_survives(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_transformers_reads_it(tokenizer: Tokenizer, tmp_path: Path) -> None:
    save_tokenizer(tokenizer, tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    messages = [
        {"role": "user", "content": "Add 1 and 2."},
        {"role": "assistant", "content": "3"},
        {"role": "user", "content": "And 4?"},
    ]
    text = loaded.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == "<|user|>Add 1 and 2.<|assistant|>3<|endoftext|><|user|>And 4?<|assistant|>"
    assert (loaded.eos_token_id, loaded.pad_token_id, loaded.mask_token_id) == (0, 0, 1)
    assert loaded.model_max_length == 512
    assert loaded.encode(TEXTS[0], add_special_tokens=False) == tokenizer.encode(TEXTS[0]).ids


def test_a_vocabulary_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 512"):
        train_tokenizer(TEXTS, vocab_size=100)
