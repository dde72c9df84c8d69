import json
from pathlib import Path

import pytest
import torch

from training.helpers import END, Copies, copy_batches
from unmask.errors import UnmaskError
from unmask.models.text import Text
from unmask.training.data import (
    BucketedBatches,
    ChatEncoder,
    DataError,
    Example,
    FileExamples,
    GeneratedExamples,
    Tail,
    read_conversations,
)
from unmask.training.tokenizer import save_tokenizer, train_tokenizer


@pytest.fixture(scope="session")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> ChatEncoder:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(train_tokenizer(["Add 12 and 3.", "def f(x):\n    return x + 1"] * 3, vocab_size=512), folder)
    return ChatEncoder(Text.load(folder), END)


def write(path: Path, *lines: object) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def test_conversations_come_in_both_forms(tmp_path: Path) -> None:
    turns = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": "d"},
    ]
    path = write(tmp_path / "data.jsonl", {"prompt": "p", "answer": "q"}, {"messages": turns})
    assert list(read_conversations(path)) == [(1, [{"role": "user", "content": "p"}], "q"), (2, turns[:3], "d")]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "not valid JSON"),
        ("", "not valid JSON"),
        ("[1]", "expected a JSON object"),
        ({"prompt": "p"}, '"prompt" and "answer"'),
        ({"prompt": "p", "answer": " "}, "empty"),
        ({"prompt": "", "answer": "a"}, "empty"),
        ({"prompt": 3, "answer": "a"}, "not text"),
        ({"messages": [{"role": "user", "content": "a"}]}, "at least"),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]}, "the assistant's"),
        ({"messages": [{"content": "a"}, {"role": "assistant", "content": "b"}]}, '"role"'),
        ({"messages": "text"}, "a conversation needs"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: object, words: str) -> None:
    path = write(tmp_path / "data.jsonl", {"prompt": "p", "answer": "q"}, line)
    with pytest.raises(DataError, match=r"data\.jsonl, line 2") as caught:
        list(read_conversations(path))
    assert words in str(caught.value)
    assert isinstance(caught.value, UnmaskError)


def test_an_unknown_role_is_named_with_its_line(tmp_path: Path, encoder: ChatEncoder) -> None:
    turns = [{"role": "wizard", "content": "a"}, {"role": "assistant", "content": "b"}]
    path = write(tmp_path / "data.jsonl", {"messages": turns})
    with pytest.raises(DataError, match=r"line 1: .*wizard"):
        FileExamples(path, encoder, 0, 64)


def test_empty_missing_and_binary_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="empty"):
        list(read_conversations(write(tmp_path / "empty.jsonl")))
    with pytest.raises(DataError, match=r"missing\.jsonl"):
        list(read_conversations(tmp_path / "missing.jsonl"))
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="UTF-8"):
        list(read_conversations(tmp_path / "binary.jsonl"))


def test_examples_that_are_too_long_are_left_out(
    tmp_path: Path, encoder: ChatEncoder, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "data.jsonl", {"prompt": "p", "answer": "q"}, {"prompt": "p" * 99, "answer": "q"})
    assert len(FileExamples(path, encoder, 0, 20).examples) == 1
    assert "1 of 2 examples" in caplog.text
    with pytest.raises(DataError, match="no example"):
        FileExamples(path, encoder, 0, 3)


def test_every_epoch_of_a_file_has_every_example_once(tmp_path: Path, encoder: ChatEncoder) -> None:
    path = write(tmp_path / "data.jsonl", *({"prompt": str(number), "answer": "x"} for number in range(64)))
    source = FileExamples(path, encoder, 7, 64)
    chunk = source.chunk(3)
    assert len(chunk) == 1024
    assert chunk == source.chunk(3)
    epochs = [chunk[start : start + 64] for start in range(0, 1024, 64)]
    assert all(set(epoch) == set(source.examples) for epoch in epochs)
    assert epochs[0] != epochs[1]


def test_examples_follow_the_chat_template_and_end(encoder: ChatEncoder) -> None:
    example = encoder.encode([{"role": "user", "content": "Add 12 and 3."}], "15")
    tokenizer = encoder.text
    assert [tokenizer.token_text(token) for token in (example.prompt[0], example.prompt[-1])] == [
        "<|user|>",
        "<|assistant|>",
    ]
    assert tokenizer.decode(example.prompt) == "Add 12 and 3."
    assert example.answer[-1] == END
    assert tokenizer.decode(example.answer) == "15"


def test_shares_are_shares_of_tokens(encoder: ChatEncoder) -> None:
    source = GeneratedExamples({"sudoku": 0.5, "words": 0.5}, encoder, seed=0)
    tokens = dict.fromkeys(source.mix, 0)
    for example in source.chunk(0):
        tokens[example.label] += len(example.prompt) + len(example.answer) + 32
    assert tokens["sudoku"] == pytest.approx(tokens["words"], rel=0.15)


def test_generated_chunks_are_repeatable_and_leave_out_what_is_excluded(
    encoder: ChatEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unmask.training.data.CHUNK_EXAMPLES", 64)
    source = GeneratedExamples({"sudoku": 1.0}, encoder, seed=0)
    chunk = source.chunk(2)
    assert chunk == source.chunk(2)
    assert chunk != source.chunk(3)
    puzzles = {encoder.text.decode(example.prompt).split("\n", 1)[1] for example in chunk[:32]}
    others = GeneratedExamples({"sudoku": 1.0}, encoder, seed=0, exclude=puzzles).chunk(2)
    assert not puzzles & {encoder.text.decode(example.prompt).split("\n", 1)[1] for example in others}


def test_batches_are_filled_with_end_tokens_that_share_a_weight() -> None:
    batch = copy_batches().take(1)[0]
    assert batch.tokens.shape[1] % 16 == 0
    assert batch.tokens.numel() <= 96
    assert bool(batch.exists.all())
    for row, start in enumerate(batch.answer_starts.tolist()):
        length = start - 1  # the answer repeats the prompt without its last token, then ends
        end = start + length + 1
        assert batch.tokens[row, start : end - 1].tolist() == batch.tokens[row, : start - 1].tolist()
        assert (batch.tokens[row, end - 1 :] == END).all()
        assert not batch.weights[row, :start].any()
        assert (batch.weights[row, start:end] == 1.0).all()
        if end < batch.tokens.shape[1]:
            assert batch.weights[row, end:].sum().item() == pytest.approx(3.0)


def test_every_example_of_a_chunk_is_used_once() -> None:
    batches = copy_batches()
    labels: list[str] = []
    while len(labels) < 24:
        labels.extend(batches.take(1)[0].labels)
    assert sorted(labels) == sorted(example.label for example in Copies().chunk(0))


def test_batches_go_on_from_their_counters() -> None:
    one, other = copy_batches(), copy_batches()
    one.take(7)
    other.state = one.state
    for mine, its in zip(one.take(5), other.take(5), strict=True):
        assert torch.equal(mine.tokens, its.tokens)


def test_a_chunk_in_which_nothing_fits_is_an_error() -> None:
    class Long:
        def chunk(self, index: int) -> list[Example]:
            return [Example((1,) * 80, (2, END))]

    batches = BucketedBatches(Long(), batch_tokens=64, pad_id=END, seed=0, max_length=64)
    with pytest.raises(DataError, match="64 tokens"):
        batches.take(1)


def test_tails_reach_the_longest_canvas_but_are_mostly_short() -> None:
    import random

    rng, tail = random.Random(0), Tail()
    drawn = [tail.draw(40, rng) for _ in range(2000)]
    assert max(drawn) == 256 - 40
    assert sum(length <= 16 for length in drawn) > 1400
