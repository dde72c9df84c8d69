"""Decode one prompt and look on."""

import time
from typing import TYPE_CHECKING

from unmask.core.metrics import Counts, useful
from unmask.core.state import DenoisingState
from unmask.core.trajectory import Recorder
from unmask.generation import Completion, Model, Recipe, run
from unmask.show.frames import Framer

if TYPE_CHECKING:
    from unmask.show.terminal import Screen


def decode(
    model: Model, state: DenoisingState, recipe: Recipe, facts: dict[str, str], screen: "Screen | None" = None
) -> Completion:
    """Decode a state of one row, and draw every step if there is a screen to draw on.

    Args:
        facts: what the trajectory should say about itself beside model and recipe.
        screen: drawing on it does not count as decoding time.
    """
    recorder, framer = Recorder(state), Framer(state, model.text, end_ids=model.facts.end_ids)
    frame = framer.first() if screen else None
    last, seconds = state, 0.0
    steps = run(model, state, recipe)
    while True:
        if screen and frame:
            screen.show(frame)
        begun = time.perf_counter()
        step = next(steps, None)
        seconds += time.perf_counter() - begun
        if step is None:
            break
        recorder.add(step)
        last = step.after
        frame = framer.add(step) if screen else None
    if screen and frame:
        screen.finish(frame)
    trajectory = recorder.trajectory({"model": model.source, **recipe.specs(), **facts})
    tokens, ended = useful(last.tokens[0][last.answer[0]].tolist(), model.facts.end_ids)
    counts = Counts(len(tokens), ended, trajectory.nfe(0), trajectory.rows_computed(0))
    return Completion(
        text=model.text.decode(tokens),
        tokens=tokens,
        nfe=counts.nfe,
        tpf=counts.tpf,
        rows_computed=counts.rows_computed,
        finish_reason="unfinished" if bool(last.masked.any()) else "stop" if ended else "length",
        seconds=seconds,
        canvas=last.tokens[0][last.exists[0]].tolist(),
        trajectory=trajectory,
    )
