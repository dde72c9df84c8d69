"""The numbers we print, worked out by hand."""

import pytest

from unmask.core.metrics import Counts, useful


@pytest.mark.parametrize(
    ("answer", "ends", "expected"),
    [
        ([4, 5, 8, 8], (8,), ([4, 5], True)),
        ([8, 4], (8,), ([], True)),
        ([4, 5], (8,), ([4, 5], False)),
        ([4, 7, 8], (8, 7), ([4], True)),  # whichever end token comes first
        ([4, 8], (), ([4, 8], False)),
        ([], (8,), ([], False)),
    ],
)
def test_useful_tokens_stand_before_the_first_end_token(
    answer: list[int], ends: tuple[int, ...], expected: tuple[list[int], bool]
) -> None:
    assert useful(answer, ends) == expected


def test_the_end_token_is_decided_but_not_useful() -> None:
    """The example of docs/metrics.md: 5 tokens and an end token in 3 passes and 1 second."""
    counts = Counts(useful_tokens=5, ended=True, nfe=3, rows_computed=156)
    assert counts.decided_tokens == 6
    assert counts.tpf == 2.0
    assert counts.tokens_per_second(1.0) == 5.0


def test_an_answer_without_an_end_token_counts_its_tokens_alone() -> None:
    assert Counts(useful_tokens=8, ended=False, nfe=4, rows_computed=0).tpf == 2.0


def test_nothing_done_in_no_time_is_zero() -> None:
    idle = Counts(useful_tokens=0, ended=False, nfe=0, rows_computed=0)
    assert idle.tpf == 0.0 and idle.tokens_per_second(0.0) == 0.0
