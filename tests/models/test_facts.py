"""Facts that contradict themselves are refused."""

from typing import Any

import pytest

from unmask.models.facts import ModelFacts
from unmask.models.tiny import tiny_backbone, tiny_facts


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"mask_id": 24}, r"mask_id must be in the vocabulary: got 24, allowed 0\.\.23"),
        ({"mask_id": -1}, "mask_id must be in the vocabulary: got -1"),
        ({"end_ids": (3, 99)}, "end_ids must be in the vocabulary: got 99"),
        ({"banned_ids": (24,)}, "banned_ids must be in the vocabulary: got 24"),
        ({"end_ids": (23,)}, "the mask id cannot end an answer"),
        ({"shift": 2}, "shift must be 0 or 1: got 2"),
        ({"block_length": 0}, "block_length must be at least 1: got 0"),
        ({"max_length": 0}, "max_length must be at least 1: got 0"),
    ],
)
def test_impossible_facts(changes: dict[str, Any], part: str) -> None:
    with pytest.raises(ValueError, match=part):
        tiny_facts(tiny_backbone(), **changes)


def test_facts_without_end_or_ban_are_fine() -> None:
    facts = tiny_facts(tiny_backbone(), end_ids=(), banned_ids=())
    assert isinstance(facts, ModelFacts) and facts.mask_id == 23
