"""A recorded run can be replayed, stored, cut into rows and taken up again at any step."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import contract
from fakes import ScriptedPredictor, steps
from unmask.caches import CACHES
from unmask.core.denoise import Step
from unmask.core.schedules import SCHEDULES, Sequential
from unmask.core.state import DenoisingState, Move
from unmask.core.stopping import Stopping
from unmask.core.trajectory import Kind, Recorder, Trajectory
from unmask.decoders import DECODERS, Decoder
from unmask.decoders.quota import MaskgitPlus
from unmask.decoders.threshold import Threshold
from unmask.errors import RequestError

MASK, END = 9, 8
STATE_FIELDS = [field.name for field in fields(DenoisingState) if field.name not in ("mask_id", "end_ids", "shift")]
EVENT_FIELDS = ("row", "step", "kind", "slot", "token", "confidence", "passes")


@dataclass(frozen=True, slots=True)
class Fickle(Decoder):
    """Commit everything that reaches 0.9; take the first answer slot back at step 1, whatever it holds."""

    revokes = True

    def decide(self, state: DenoisingState, window: Any, prediction: Any, memory: Any) -> Move:
        move = Threshold(0.9).decide(state, window, prediction, memory)
        first = state.answer & (state.answer.cumsum(-1) == 1) & ~state.masked
        return Move(move.commit, move.tokens, first & (state.step == 1)[:, None])


def recorded() -> tuple[DenoisingState, list[Step]]:
    """Two ragged rows: the first revokes and recommits, and is closed behind its end token; the second ends earlier."""
    state = DenoisingState.start([[0], [0, 0]], [5, 2], mask_id=MASK, end_ids=(END,), shift=1)
    script = [
        [{1: (1, 0.95), 2: (2, 0.6)}, {2: (2, 0.97)}, {1: (3, 0.95), 3: (END, 0.91)}, {4: (4, 0.92), 5: (4, 0.92)}],
        [{2: (5, 0.9), 3: (6, 0.7)}, {3: (6, 0.9)}, {2: (7, 0.9)}],
    ]
    predictor = ScriptedPredictor(script, mask_id=MASK, end_ids=(END,))
    return state, steps(predictor, Fickle(), state=state, schedule=Sequential(3), stop=Stopping("tail"))


def assert_states_equal(one: DenoisingState, other: DenoisingState) -> None:
    assert (one.mask_id, one.end_ids, one.shift) == (other.mask_id, other.end_ids, other.shift)
    for name in STATE_FIELDS:
        assert torch.equal(getattr(one, name), getattr(other, name)), name


def assert_trajectories_equal(one: Trajectory, other: Trajectory) -> None:
    assert_states_equal(one.start, other.start)
    for name in EVENT_FIELDS:
        assert torch.equal(getattr(one, name), getattr(other, name)), name
    assert one.facts == other.facts


def events(trajectory: Trajectory) -> list[tuple[int, int, str, int, int]]:
    return [
        (row, step, Kind(kind).name, slot, token)
        for row, step, kind, slot, token in zip(
            *(getattr(trajectory, name).tolist() for name in ("row", "step", "kind", "slot", "token")), strict=True
        )
    ]


# Recording -----------------------------------------------------------------------------------------------------------


def test_commits_revocations_and_fills_are_recorded() -> None:
    trajectory = Trajectory.collect(*recorded())
    assert events(trajectory) == [
        (0, 0, "COMMIT", 1, 1),
        (1, 0, "COMMIT", 2, 5),
        (0, 1, "COMMIT", 2, 2),
        (1, 1, "COMMIT", 3, 6),
        (0, 1, "REVOKE", 1, MASK),
        (1, 1, "REVOKE", 2, MASK),
        (0, 2, "COMMIT", 1, 3),
        (0, 2, "COMMIT", 3, END),
        (1, 2, "COMMIT", 2, 7),
        (0, 2, "FILL", 4, END),
        (0, 2, "FILL", 5, END),
    ]


def test_confidence_is_kept_for_commits_alone() -> None:
    trajectory = Trajectory.collect(*recorded())
    assert trajectory.confidence.tolist() == pytest.approx([0.95, 0.9, 0.97, 0.9, 0, 0, 0.95, 0.91, 0.9, 0, 0])


def test_a_filled_slot_has_no_confidence_although_it_was_asked_about() -> None:
    predictor = ScriptedPredictor([{1: (END, 0.95), 2: (3, 0.6)}], mask_id=MASK, end_ids=(END,))
    state = DenoisingState.start([[0]], 2, mask_id=MASK)
    taken = steps(predictor, Threshold(0.9), state=state, stop=Stopping("tail"))
    trajectory = Trajectory.collect(state, iter(taken))
    assert [Kind(kind).name for kind in trajectory.kind.tolist()] == ["COMMIT", "FILL"]
    assert trajectory.confidence.tolist() == pytest.approx([0.95, 0.0])


def test_passes_are_counted_row_by_row() -> None:
    trajectory = Trajectory.collect(*recorded())
    assert (trajectory.nfe(0), trajectory.nfe(1)) == (3, 3)
    assert (trajectory.rows_computed(0), trajectory.rows_computed(1)) == (3 * 6, 3 * 4)


def test_passes_that_commit_nothing_count_too() -> None:
    predictor = ScriptedPredictor([{}])
    state = DenoisingState.start([[0]], 4, mask_id=MASK)
    trajectory = Trajectory.collect(state, iter(steps(predictor, MaskgitPlus(compat="dream"), state=state)))
    assert trajectory.nfe(0) == 4 and 0 not in trajectory.step.tolist()
    assert len(list(trajectory.states())) == 5


def test_a_recorder_can_be_read_while_the_run_goes_on() -> None:
    state, taken = recorded()
    recorder = Recorder(state)
    assert_states_equal(recorder.trajectory().final(), state.take(torch.tensor([0])))
    for number, step in enumerate(taken, start=1):
        recorder.add(step)
        assert recorder.trajectory().nfe(0) == number
    assert_trajectories_equal(recorder.trajectory(), Trajectory.collect(state, iter(taken)))


# Replaying -----------------------------------------------------------------------------------------------------------


def states_seen(taken: list[Step], row: int) -> Iterator[DenoisingState]:
    for step in taken:
        for place in (step.row_ids == row).nonzero()[:, 0]:
            yield step.after.take(place[None])


@pytest.mark.parametrize("row", [0, 1])
def test_replayed_states_are_those_of_the_run(row: int) -> None:
    state, taken = recorded()
    replayed = list(Trajectory.collect(state, iter(taken)).states(row))
    seen = [state.take(torch.tensor([row])), *states_seen(taken, row)]
    assert len(replayed) == len(seen)
    for ours, theirs in zip(replayed, seen, strict=True):
        assert_states_equal(ours, theirs)


@pytest.mark.parametrize(
    "spec", ["threshold(threshold=0.6)", "origin(steps=8)", "maskgit-plus(steps=8, compat='dream')"]
)
def test_a_sampled_run_of_a_model_is_replayed_state_by_state(spec: str) -> None:
    state = contract.first_state("llada")
    parts = DECODERS.make(spec), SCHEDULES.make("sequential(block_length=8)"), CACHES.make("dual")
    taken = list(contract.steps("llada", state, *parts, temperature=0.7, stop="tail"))
    trajectory = Trajectory.collect(state, iter(taken))
    for row in range(3):
        for ours, theirs in zip(list(trajectory.states(row))[1:], states_seen(taken, row), strict=True):
            assert_states_equal(ours, theirs)


def test_one_row_is_cut_out_as_row_0() -> None:
    whole = Trajectory.collect(*recorded())
    one = whole.of_row(1)
    assert events(one) == [(0, *event[1:]) for event in events(whole) if event[0] == 1]
    assert one.passes.tolist() == [[0, 0, 4], [0, 1, 4], [0, 2, 4]]
    assert_states_equal(one.final(), whole.final(1))
    assert one.start.num_rows == 1


def test_joined_runs_are_the_rows_of_all_of_them_and_say_what_all_say() -> None:
    start, taken = recorded()
    whole = Trajectory.collect(start, taken, {"decoder": "fickle", "sampling": "greedy"})
    other = replace(whole.of_row(1), facts={"decoder": "fickle", "sampling": "hot"})
    joined = Trajectory.join([whole, other, whole.of_row(0)])
    assert joined.facts == {"decoder": "fickle"}
    assert joined.start.num_rows == 4
    for row, origin in enumerate([0, 1, 1, 0]):
        assert joined.nfe(row) == whole.nfe(origin)
        for one, same in zip(joined.states(row), whole.states(origin), strict=True):
            for name in STATE_FIELDS:
                assert torch.equal(getattr(one, name), getattr(same, name)), name


@pytest.mark.parametrize("row", [-1, 2])
def test_a_row_that_is_not_there(row: int) -> None:
    with pytest.raises(RequestError, match=f"no row {row} in this trajectory; it has rows 0 to 1"):
        Trajectory.collect(*recorded()).of_row(row)


# Taking up a run again -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spec", ["low-confidence(steps=9)", "random(steps=9)", "threshold(threshold=0.8, steps=6)", "origin(steps=8)"]
)
def test_a_run_taken_up_at_any_step_ends_the_same(spec: str) -> None:
    parts = DECODERS.make(spec), SCHEDULES.make("sequential(block_length=8)"), CACHES.make("none")
    options: dict[str, Any] = {"temperature": 0.7, "stop": "tail"}
    whole = contract.run("llada", contract.first_state("llada", (1,)), *parts, **options)
    states = list(whole.states())
    for number in (1, len(states) // 2, len(states) - 2):
        rest = contract.run("llada", states[number], *parts, **options)
        assert_states_equal(rest.final(), whole.final())
        assert rest.nfe(0) == whole.nfe(0) - number
        for ours, theirs in zip(rest.states(), states[number:], strict=True):
            assert_states_equal(ours, theirs)


# Files ---------------------------------------------------------------------------------------------------------------


def test_a_saved_trajectory_comes_back_whole(tmp_path: Path) -> None:
    trajectory = Trajectory.collect(*recorded(), facts={"model": "tiny", "note": 'quotes " and \u00fc'})
    trajectory.save(tmp_path / "run.safetensors")
    assert_trajectories_equal(Trajectory.load(tmp_path / "run.safetensors"), trajectory)
    assert [path.name for path in tmp_path.iterdir()] == ["run.safetensors"], "no half file stays behind"


def test_a_row_cut_out_can_be_saved_too(tmp_path: Path) -> None:
    row = Trajectory.collect(*recorded()).of_row(1)
    row.save(str(tmp_path / "row"))
    assert_trajectories_equal(Trajectory.load(str(tmp_path / "row")), row)


def test_a_run_without_steps_can_be_saved_too(tmp_path: Path) -> None:
    empty = Trajectory.collect(DenoisingState.start([[0]], 2, mask_id=MASK), [])
    empty.save(tmp_path / "empty")
    assert_trajectories_equal(Trajectory.load(tmp_path / "empty"), empty)


def test_saving_again_replaces_the_file(tmp_path: Path) -> None:
    trajectory = Trajectory.collect(*recorded())
    trajectory.save(tmp_path / "run")
    trajectory.of_row(0).save(tmp_path / "run")
    assert Trajectory.load(tmp_path / "run").start.num_rows == 1


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=f'no trajectory at "{tmp_path}/none"'):
        Trajectory.load(tmp_path / "none")
    with pytest.raises(RequestError, match="no trajectory at"):
        Trajectory.load(tmp_path)


@pytest.mark.parametrize("content", [b"", b"not a safetensors file at all, but text"])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "text").write_bytes(content)
    with pytest.raises(RequestError, match='text" is not a trajectory: '):
        Trajectory.load(tmp_path / "text")


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run"
    Trajectory.collect(*recorded()).save(path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(RequestError, match='run" is not a trajectory: '):
        Trajectory.load(path)


@pytest.mark.parametrize(("notes", "got"), [({}, "None"), ({"format": "unmask-trajectory-0"}, "unmask-trajectory-0")])
def test_another_format_is_refused(tmp_path: Path, notes: dict[str, str], got: str) -> None:
    save_file({"a": torch.zeros(1)}, tmp_path / "other", metadata=notes)
    with pytest.raises(RequestError, match=f"its format is {got}, wanted unmask-trajectory-1 or unmask-trajectory-2"):
        Trajectory.load(tmp_path / "other")


def test_a_file_of_the_first_format_is_read_still(tmp_path: Path) -> None:
    """It had whole numbers of 64 bits, and neither views nor words."""
    trajectory = Trajectory.collect(*recorded(), facts={"model": "tiny"})
    tensors = {f"start.{name}": getattr(trajectory.start, name) for name in STATE_FIELDS}
    tensors |= {name: getattr(trajectory, name).contiguous() for name in EVENT_FIELDS}
    notes = {"model": json.dumps({"mask_id": MASK, "end_ids": [END], "shift": 1}), "facts": '{"model": "tiny"}'}
    old = Trajectory.load(broken(tmp_path / "old", tensors, notes))
    assert_trajectories_equal(old, trajectory)
    assert old.views is None and old.words == {}


def test_numbers_are_stored_in_as_few_bytes_as_hold_them(tmp_path: Path) -> None:
    state, taken = recorded()
    state = replace(state, seed=torch.tensor([2**40, 5]))
    trajectory = Trajectory.collect(state, iter(taken))
    trajectory.save(tmp_path / "run")
    stored = load_file(tmp_path / "run")
    assert stored["slot"].dtype == torch.uint8 and stored["start.committed_at"].dtype == torch.int16
    assert stored["start.seed"].dtype == torch.long
    assert_trajectories_equal(Trajectory.load(tmp_path / "run"), trajectory)


def test_words_and_control_tokens_come_back_half_characters_included(tmp_path: Path) -> None:
    trajectory = Trajectory.collect(*recorded())
    trajectory = replace(trajectory, words={1: "\u00fc", 2: "\udce2\udc80"}, controls={8: "<|end|>"})
    trajectory.save(tmp_path / "run")
    loaded = Trajectory.load(tmp_path / "run")
    assert loaded.words == trajectory.words and loaded.controls == trajectory.controls
    assert loaded.of_row(1).words == trajectory.words


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("slot", lambda values: values + 100),
        ("token", lambda values: values[1:]),
        ("kind", lambda values: values + 5),
        ("passes", lambda values: values[:, :2].contiguous()),
        ("passes", lambda values: values + 50),
        ("start.masked", lambda values: values.int()),
        ("start.tokens", lambda values: values[0]),
        ("start.step", lambda values: values[:1]),
    ],
)
def test_parts_that_do_not_fit_each_other_are_refused(tmp_path: Path, name: str, change: Any) -> None:
    Trajectory.collect(*recorded()).save(tmp_path / "whole")
    tensors = load_file(tmp_path / "whole")
    tensors[name] = change(tensors[name].long() if tensors[name].dtype != torch.bool else tensors[name])
    notes = {"model": json.dumps({"mask_id": 9, "end_ids": [], "shift": 0}), "facts": json.dumps({})}
    with pytest.raises(RequestError, match=f'odd" is not a trajectory: {name}'):
        Trajectory.load(broken(tmp_path / "odd", tensors, notes))


@pytest.mark.parametrize("note", ["model", "facts", "words"])
def test_notes_that_cannot_be_read_are_refused(tmp_path: Path, note: str) -> None:
    Trajectory.collect(*recorded()).save(tmp_path / "whole")
    notes = {"model": json.dumps({"mask_id": 9, "end_ids": [], "shift": 0}), "facts": json.dumps({}), note: "[1"}
    with pytest.raises(RequestError, match='odd" is not a trajectory: '):
        Trajectory.load(broken(tmp_path / "odd", load_file(tmp_path / "whole"), notes))


def broken(path: Path, tensors: dict[str, Tensor], notes: dict[str, str]) -> Path:
    save_file(tensors, path, metadata={"format": "unmask-trajectory-1", **notes})
    return path


@pytest.mark.parametrize("missing", ["start.tokens", "slot", "model", "facts"])
def test_a_trajectory_file_with_a_part_missing_is_refused(tmp_path: Path, missing: str) -> None:
    Trajectory.collect(*recorded()).save(tmp_path / "whole")
    tensors = load_file(tmp_path / "whole")
    notes = {"model": json.dumps({"mask_id": 9, "end_ids": [], "shift": 0}), "facts": json.dumps({})}
    tensors.pop(missing, None), notes.pop(missing, None)
    with pytest.raises(RequestError, match='less" is not a trajectory: '):
        Trajectory.load(broken(tmp_path / "less", tensors, notes))


def test_a_path_in_a_missing_folder_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r'cannot write the trajectory to ".*run"'):
        Trajectory.collect(*recorded()).save(tmp_path / "missing" / "run")


def test_a_folder_in_the_way_is_reported_and_no_half_file_stays(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with pytest.raises(RequestError, match=r'cannot write the trajectory to ".*run"'):
        Trajectory.collect(*recorded()).save(tmp_path / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
