"""Decode one prompt and look on."""

import time
from typing import TYPE_CHECKING

from unmask.core.state import DenoisingState
from unmask.generation import Completion, Model, Recipe, Tally, drift_of, run
from unmask.show.frames import Framer

if TYPE_CHECKING:
    from unmask.show.terminal import Screen


def decode(
    model: Model,
    state: DenoisingState,
    recipe: Recipe,
    facts: dict[str, str],
    screen: "Screen | None" = None,
    *,
    views: bool = False,
    drift: bool = False,
) -> Completion:
    """Decode a state of one row, and draw every step if there is a screen to draw on.

    Args:
        facts: what the trajectory should say about itself beside model and recipe.
        screen: drawing on it does not count as decoding time.
        views: keep in the trajectory what the model was shown.
        drift: measure how many commits the cache has changed.
    """
    facts = {**model.origin, **recipe.specs(), **facts}
    tally = Tally(model, state, facts, views=views, drift=drift_of(model, recipe) if drift else None)
    framer = Framer(state, model.text, end_ids=model.facts.end_ids, views=True)
    frame = framer.first() if screen else None
    seconds = 0.0
    steps = run(model, state, recipe)
    while True:
        if screen and frame:
            screen.show(frame)
        begun = time.perf_counter()
        step = next(steps, None)
        seconds += time.perf_counter() - begun
        if step is None:
            break
        tally.add(step, seconds)
        frame = framer.add(step) if screen else None
    if screen and frame:
        screen.finish(frame)
    return tally.completions()[0]
