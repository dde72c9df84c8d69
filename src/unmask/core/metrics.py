"""The definitions of every number we print (docs/metrics.md says them in words)."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Counts:
    """What one answer cost and gave."""

    useful_tokens: int  # answer tokens before the end token; no prompt, no tail
    ended: bool  # an end token was committed
    nfe: int  # forward passes this row took part in
    rows_computed: int  # hidden states computed, over all forward passes

    @property
    def decided_tokens(self) -> int:
        """Answer tokens up to and including the end token."""
        return self.useful_tokens + self.ended

    @property
    def tpf(self) -> float:
        """Tokens per forward: answer tokens up to and including the end token, divided by NFE."""
        return self.decided_tokens / self.nfe if self.nfe else 0.0

    def tokens_per_second(self, seconds: float) -> float:
        """Useful tokens per second of wall time."""
        return self.useful_tokens / seconds if seconds > 0 else 0.0


def useful(answer: Sequence[int], end_ids: Sequence[int]) -> tuple[list[int], bool]:
    """Answer tokens before the first end token, and whether there was one."""
    for index, token in enumerate(answer):
        if token in end_ids:
            return list(answer[:index]), True
    return list(answer), False
