"""The method worked out on paper, its bounds, and the invariants that every method keeps."""

import pytest
from unmask_steady import Steady

import unmask
from contract import assert_decoder_contract
from fakes import ScriptedPredictor, trace

# One line per forward pass: slot -> (token, confidence). Slots 0 and 1 are the prompt.
TABLE = [
    {2: (4, 0.95), 3: (5, 0.60), 4: (6, 0.70), 5: (1, 0.30), 6: (2, 0.40), 7: (3, 0.55)},
    {3: (5, 0.65), 4: (6, 0.80), 5: (1, 0.35), 6: (7, 0.45), 7: (3, 0.60)},
    {3: (5, 0.62), 5: (1, 0.40), 6: (7, 0.55), 7: (3, 0.50)},
    {5: (1, 0.92), 6: (7, 0.45)},
    {6: (7, 0.45)},
]


def test_the_worked_example() -> None:
    assert trace(ScriptedPredictor(TABLE), Steady(), prompt=[0, 0], length=6) == [
        [(2, 4)],  # sure at once
        [(4, 6)],  # nothing passes: the most confident slot
        [(3, 5), (7, 3)],  # two comparisons without a change; slot 5 is steady too, but below the floor
        [(5, 1)],  # sure; slot 6 is steady, but below the floor again
        [(6, 7)],  # nothing passes: the only slot left
    ]


def test_a_change_of_mind_starts_the_count_again() -> None:
    table = [{1: (1, 0.6), 2: (5, 0.7)}, {1: (2, 0.6), 3: (5, 0.7)}, {1: (2, 0.6), 4: (5, 0.7)}, {1: (2, 0.6)}]
    steps = trace(ScriptedPredictor(table), Steady(), length=5)
    assert [(1, 2) in step for step in steps] == [False, False, False, True, False]


def test_patience_must_be_a_count() -> None:
    with pytest.raises(unmask.RequestError, match="patience must be at least 1"):
        unmask.DECODERS.make("steady(patience=0)")


@pytest.mark.slow
def test_it_keeps_the_invariants_with_every_schedule_and_cache() -> None:
    assert_decoder_contract(Steady())
