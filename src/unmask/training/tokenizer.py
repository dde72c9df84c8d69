"""The tokenizer of the built-in model: a small byte-level BPE, trained from text.

Numbers up to 99 are one token, so that a small model meets each as a word; longer runs of digits are split into single
digits, so that the cells of a sudoku stay apart. An operator between two spaces keeps both (" + "), which leaves
numbers without a leading space: "12" is the same token at the start of a line and inside a sum.
"""

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

END_TOKEN = "<|endoftext|>"  # also the padding
MASK_TOKEN = "<|mask|>"
USER_TOKEN = "<|user|>"
ASSISTANT_TOKEN = "<|assistant|>"
SPECIAL_TOKENS = (END_TOKEN, MASK_TOKEN, USER_TOKEN, ASSISTANT_TOKEN)

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}<|assistant|>{{ message['content'] }}<|endoftext|>"
    "{% else %}<|user|>{{ message['content'] }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

_PIECES = "|".join(
    (
        r" (?:[-+*/%<>=!]=|//|\*\*|[-+*/%<>=]) (?=\S)",  # an operator with its spaces
        r"\bdef ",  # so that a name is the same tokens here and in a prompt
        r"(?<!\d)\d{1,2}(?!\d)|\d",  # a number up to 99, or one digit of a longer run
        r" ?\p{L}+| ?[^\s\p{L}\p{N}]+|\p{N}|\s+(?!\S)|\s+",  # words, signs and spaces, as in GPT-2
    )
)
_SMALL_NUMBERS = [str(number) for number in range(100)]


def train_tokenizer(texts: Iterable[str], *, vocab_size: int = 1280) -> Tokenizer:
    """Train a byte-level BPE.

    Args:
        texts: the training text; a few thousand samples are enough.
        vocab_size: number of tokens with the special ones, at least 512 (260 are bytes and special, 90 two-digit
            numbers).

    Returns:
        The tokenizer; special tokens have the ids 0 to 3 in the order of `SPECIAL_TOKENS`.
    """
    if vocab_size < 512:
        raise ValueError(f"vocab_size must be at least 512: got {vocab_size}")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )

    def corpus() -> Iterable[str]:
        count = 0
        for text in texts:
            count += 1
            yield text
        # Merges are made by frequency: this gives every two-digit number its own.
        yield from (" ".join(_SMALL_NUMBERS) for _ in range(count))

    tokenizer.train_from_iterator(corpus(), trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path, *, max_length: int = 512) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json`, which `transformers.AutoTokenizer` reads.

    Args:
        tokenizer: made by `train_tokenizer`.
        folder: an existing folder.
        max_length: trained context, tokens.
    """
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "eos_token": END_TOKEN,
        "pad_token": END_TOKEN,
        "mask_token": MASK_TOKEN,
        "additional_special_tokens": [USER_TOKEN, ASSISTANT_TOKEN],
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
