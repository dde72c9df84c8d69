"""A record that carries the text of its tokens reads like the tokenizer it came from."""

import random
from pathlib import Path

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

import unmask
from conftest import REFERENCE
from unmask.core.state import DenoisingState
from unmask.core.trajectory import Trajectory
from unmask.generation import Recipe, run, start_state
from unmask.models.text import Text
from unmask.show.frames import frames
from unmask.show.words import Words, with_words

BUILTIN = Path(unmask.__file__).parent / "builtin"


def of_characters() -> Text:
    """Words behind a low line, and single bytes for what the vocabulary lacks."""
    vocabulary = {
        "<unk>": 0,
        "\u2581the": 1,
        "\u2581": 2,
        "x": 3,
        **{f"<0x{byte:02X}>": 4 + byte for byte in range(256)},
    }
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken("<s>", special=True)])
    return Text(tokenizer)


def all_words(text: Text) -> Words:
    """Of every token of a vocabulary, and two beyond it."""
    size = text.vocab_size + 2
    state = DenoisingState.from_canvas([[*range(size), None]], mask_id=0)
    return Words.of(with_words(Trajectory.collect(state, []), text))


@pytest.mark.parametrize("folder", [BUILTIN, REFERENCE / "ckpt" / "llada", REFERENCE / "ckpt" / "dream"], ids=str)
def test_any_tokens_read_as_the_tokenizer_reads_them(folder: Path) -> None:
    text = Text.load(folder)
    words, draw = all_words(text), random.Random(0)
    for length in (0, 1, 2, 3, 5, 8, 40) * 20:
        ids = [draw.randrange(text.vocab_size + 2) for _ in range(length)]
        assert words.decode_pieces(ids) == text.decode_pieces(ids), ids
        assert words.decode(ids) == text.decode(ids), ids
        assert [words.token_text(token) for token in ids] == [text.token_text(token) for token in ids]


@pytest.mark.parametrize("string", ["h\u00e9llo \U0001f642 \u6f22\u5b57", "def f(x):\n\treturn x\n", "  two  spaces"])
def test_characters_of_several_tokens_are_put_together(string: str) -> None:
    text = Text.load(BUILTIN)
    ids = text.encode(string)
    assert "".join(all_words(text).decode_pieces(ids)) == string


def test_a_vocabulary_of_characters_keeps_its_spaces_and_spelled_bytes() -> None:
    text = of_characters()
    words = all_words(text)
    ids = [1, 1, 2, 3, *(4 + byte for byte in "\u6f22".encode())]
    assert words.decode_pieces(ids)[1:] == [" the", " ", "x", "", "", "\u6f22"]


def test_control_tokens_and_strange_ids_are_shown_by_name() -> None:
    words = Words({3: "x"}, {5: "<|end|>"})
    assert [words.token_text(token) for token in (3, 5, 7)] == ["x", "<|end|>", "<7>"]
    assert words.decode([3, 5, 7, 3]) == "xx" and words.decode_pieces([3, 5, 7, 3]) == ["x", "", "", "x"]


def test_a_record_gives_the_same_frames_without_its_tokenizer(llada: unmask.Model, tmp_path: Path) -> None:
    state = start_state(llada, ["sort it", "a longer prompt"], [24, 30])
    record = Trajectory.collect(state, run(llada, state, Recipe.of("threshold(threshold=0.5)")), views=True)
    with_words(record, llada.text).save(tmp_path / "run")
    loaded = Trajectory.load(tmp_path / "run")
    for row in range(2):
        assert list(frames(loaded, Words.of(loaded), row=row)) == list(frames(record, llada.text, row=row))
    known = {*loaded.words, *loaded.controls}
    assert set(torch.cat((state.tokens.flatten(), record.token)).tolist()) <= known
