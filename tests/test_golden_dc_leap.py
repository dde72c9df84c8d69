"""DC-Leap against recorded traces: tokens, forwards, and the drafts the model was shown at every one of them."""

from typing import Any

import pytest

from goldens import Parts, assert_reproduced, recorded, settings, steps_of
from unmask.core.schedules import Sliding

FILES = ("llada/dcleap", "dream/dcleap")


def parts(p: dict[str, Any]) -> Parts:
    decoder = f"dc-leap(commit={p['commit_thres']}, draft={p['draft_thres']})"
    return Parts(decoder, Sliding(p["max_window_size"]), p["gen_length"])


@pytest.mark.parametrize(("name", "params"), settings(FILES))
def test_published_trace_is_reproduced(name: str, params: dict[str, Any]) -> None:
    assert_reproduced(name, params, parts(params))


@pytest.mark.parametrize(("name", "params"), settings(FILES))
def test_every_forward_is_shown_the_recorded_drafts(name: str, params: dict[str, Any]) -> None:
    """Where the window began, and which tokens stood right of it, forward by forward."""
    file = recorded(name)
    cases = [case for case in file["cases"] if case["params"] == params]
    prompts = [file["prompts"][case["prompt"]] for case in cases]
    begins: list[list[int]] = [[] for _ in cases]
    drafts: list[list[list[list[int]]]] = [[] for _ in cases]
    for step in steps_of(name.split("/")[0], parts(params), prompts):
        shown, state = step.canvas.tokens, step.before
        drafted = state.masked & (shown != state.mask_id)
        for place, row in enumerate(step.row_ids.tolist()):
            start = len(prompts[row])
            begins[row].append(int(step.window.first[place]) - start)
            slots = drafted[place].nonzero()[:, 0].tolist()
            drafts[row].append([[slot - start, int(shown[place, slot])] for slot in slots])
    assert begins == [case["verified_end"] for case in cases]
    assert drafts == [case["drafts"] for case in cases]


@pytest.mark.parametrize("name", FILES)
def test_the_traces_show_drafts_at_all(name: str) -> None:
    shown = [bool(drafts) for case in recorded(name)["cases"] for drafts in case["drafts"]]
    assert sum(shown) > 400 and not all(shown)
