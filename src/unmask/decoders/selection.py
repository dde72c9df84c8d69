"""How slots are chosen by a score. Ties always go to the lowest slot.

Shape letters: b batch rows, l canvas slots.
"""

from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.core.prediction import Prediction
from unmask.core.window import Window

Score = Literal["confidence", "margin", "entropy"]  # fields that name one of the three rankings


def score_of(name: Score, prediction: Prediction, num_slots: int) -> Float[Tensor, "b l"]:
    """A score by its name, higher is surer: an entropy with its sign turned."""
    score = -prediction.entropy if name == "entropy" else getattr(prediction, name)
    return score[:, :num_slots]


def reaches(score: Float[Tensor, "b l"], bound: float, strict: bool) -> Bool[Tensor, "b l"]:
    """Slots whose score reaches a bound; with `strict` the bound itself fails."""
    return score > bound if strict else score >= bound


def check_score(field: str, name: str) -> None:
    """Raises ValueError unless the name is that of a score."""
    if name not in get_args(Score):
        raise ValueError(f'{field} must be "confidence", "margin" or "entropy": got "{name}"')


def rank(score: Float[Tensor, "b l"], among: Bool[Tensor, "b l"]) -> Int[Tensor, "b l"]:
    """Place of every slot when the slots `among` are sorted by falling score, 0 = best; the others come last."""
    order = torch.sort(score.masked_fill(~among, float("-inf")), dim=-1, descending=True, stable=True).indices
    order = order.gather(1, torch.sort((~among).gather(1, order), dim=-1, stable=True).indices)
    places = torch.arange(score.shape[1], device=score.device).expand_as(order)
    return torch.empty_like(order).scatter(1, order, places)


def top(score: Float[Tensor, "b l"], among: Bool[Tensor, "b l"], count: Int[Tensor, " b"]) -> Bool[Tensor, "b l"]:
    """The `count` best slots of each row among those allowed (fewer if there are fewer)."""
    return among & (rank(score, among) < count[:, None])


def best_only(score: Float[Tensor, "b l"], among: Bool[Tensor, "b l"]) -> Bool[Tensor, "b l"]:
    """The single best slot of each row; nothing in a row where none is allowed."""
    return top(score, among, torch.ones_like(among[:, 0], dtype=torch.long))


def force(
    score: Float[Tensor, "b l"], among: Bool[Tensor, "b l"], commit: Bool[Tensor, "b l"], window: Window
) -> Bool[Tensor, "b l"]:
    """The commits with the best slot added wherever the window obliges a group and nothing of it would be committed."""
    if window.group is None:
        idle = ~(commit & window.open).any(-1, keepdim=True)
        return commit | best_only(score, among & window.must) & idle
    for group in sorted(set(window.group[window.must].tolist())):
        inside = window.group == group
        idle = ~(commit & inside).any(-1, keepdim=True)
        commit = commit | best_only(score, among & window.must & inside) & idle
    return commit


def first_only(among: Bool[Tensor, "b l"]) -> Bool[Tensor, "b l"]:
    """The leftmost true slot of each row."""
    return among & (among.cumsum(-1) == 1)
