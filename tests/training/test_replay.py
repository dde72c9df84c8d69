"""Samples of trajectories, against hand-worked ones and those recorded from the code released with WINO+."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import unmask
from training.helpers import MASK, clean_batch, losses_of, tiny_model
from unmask.core.sampling import Sampling
from unmask.core.trajectory import Kind, Trajectory
from unmask.generation import Recipe, complete, start_state
from unmask.models.checkpoints import load_checkpoint
from unmask.training.corruption import MaskedBatch, block_of
from unmask.training.data import DataError
from unmask.training.loop import RunSettings, Schedule, TrainingRun
from unmask.training.objectives import VerifiedOrder
from unmask.training.replay import (
    ALWAYS,
    LATER,
    DecodedAnswer,
    Replay,
    ReplayBatch,
    TrajectorySamples,
    decoded_answers,
)

DATA = Path(__file__).parents[1] / "data"
NO_NOISE = torch.Generator()


@pytest.fixture(scope="module")
def reference() -> dict[str, Any]:
    return json.loads((DATA / "losses" / "wino_plus.json").read_text())  # type: ignore[no-any-return]


def decoded(model: unmask.Model, prompts: list[list[int]], length: int, stop: str = "none") -> list[Trajectory]:
    recipe = Recipe.of(
        "wino(draft=0.3, verify=0.8)",
        "sequential(block_length=32)",
        sampling=Sampling(precision=torch.float64),
        stop=stop,
        facts=model.facts,
    )
    runs = [one.trajectory for one in complete(model, start_state(model, prompts, length), recipe)]
    return [run for run in runs if run is not None]


@pytest.fixture(scope="module")
def runs(reference: dict[str, Any], llada: unmask.Model) -> list[Trajectory]:
    """The two recorded runs, decoded again by our WINO."""
    return decoded(llada, reference["examples"]["prompt_ids"], 64)


@pytest.fixture(scope="module")
def stopped(reference: dict[str, Any], llada: unmask.Model) -> list[Trajectory]:
    """Runs that end at a settled end token, with room for more."""
    return decoded(llada, reference["examples"]["prompt_ids"], 128, stop="tail")


def answers_of(runs: list[Trajectory]) -> list[DecodedAnswer]:
    return [answer for run in runs for answer in decoded_answers(run)]


def epoch_of(source: TrajectorySamples, mask_id: int) -> list[MaskedBatch]:
    """Every batch of the epoch that `source` is about to begin."""
    epoch, batches = source.state["epoch"], []
    while True:
        (clean,) = source.take(1)
        if source.state["epoch"] != epoch and batches:
            return batches
        batches.append(Replay(mask_id)(clean, NO_NOISE))


def in_order(answer: DecodedAnswer, mask_id: int) -> list[MaskedBatch]:
    """One batch of one row for every step of one answer, by step."""
    source = TrajectorySamples([answer], batch_tokens=1, seed=0)
    return sorted(epoch_of(source, mask_id), key=lambda batch: -int(batch.masked.sum()))


def test_our_wino_accepts_what_the_recorded_runs_accepted(reference: dict[str, Any], runs: list[Trajectory]) -> None:
    said = reference["examples"]
    revoked = 0
    for number, (run, answer) in enumerate(zip(runs, answers_of(runs), strict=True)):
        prompt = said["prompt_ids"][number]
        assert answer.tokens.tolist() == prompt + said["generated_ids"][number]
        assert answer.committed_at.tolist() == [ALWAYS] * len(prompt) + said["trajectory_accepted"][number]
        revoked += int((run.kind == Kind.REVOKE).sum())
    assert revoked > 0, "commits that were taken back take part"


def test_samples_are_those_of_the_published_code(reference: dict[str, Any], runs: list[Trajectory]) -> None:
    said, mask_id = reference["samples"], reference["mask_id"]
    ours = [batch for answer in answers_of(runs) for batch in in_order(answer, mask_id)]
    assert len(ours) == len(said["input_ids"]) == 32
    for number, batch in enumerate(ours):
        assert batch.tokens[0].tolist() == said["input_ids"][number]
        assert batch.targets[0].tolist() == said["labels"][number]
        assert (batch.weights[0] > 0).tolist() == [bool(wanted) for wanted in said["target_mask"][number]]
        assert batch.answer_starts.tolist() == [said["prompt_lengths"][number]]
        blocks = block_of(batch.answer_starts, batch.tokens.shape[1], reference["block_length"])[0]
        assert int(blocks[batch.weights[0] > 0][0]) == said["block_num"][number]


def test_an_epoch_padded_with_end_tokens_costs_what_the_published_code_says(
    reference: dict[str, Any], runs: list[Trajectory]
) -> None:
    said = reference["loss_sets"][0]
    source = TrajectorySamples(answers_of(runs), batch_tokens=4 * 128, seed=3, end_padding=said["collator_max_length"])
    objective = VerifiedOrder(
        unmask=said["w_unmask_loss"],
        remask=said["w_remask_loss"],
        shy=said["threshold_back"],
        bold=said["threshold"],
        block_length=said["block_size"],
    )
    model = load_checkpoint(DATA / "reference" / "ckpt" / "llada", dtype="float32").backbone
    losses = [objective(model, batch) for batch in epoch_of(source, reference["mask_id"])]
    assert sum(loss.count for loss in losses) == 32
    ours = sorted(value for loss in losses for value in loss.rows.tolist())
    assert ours == pytest.approx(sorted(one["total"] for one in said["losses"]), rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("kind", ["runs", "stopped"])
def test_samples_in_order_rebuild_the_answer(
    kind: str, reference: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    for run in request.getfixturevalue(kind):
        (answer,) = decoded_answers(run)
        samples = in_order(answer, reference["mask_id"])
        here, final = run.start.exists[0], run.final()
        shown = run.start.tokens[:, here]
        learned = torch.zeros_like(shown, dtype=torch.bool)
        for batch in samples:
            targets = batch.weights > 0
            assert torch.equal(batch.tokens, shown), "a sample shows what the samples before it have taught"
            assert not (targets & learned).any() and (targets & batch.masked).equal(targets) and targets.any()
            shown, learned = torch.where(targets, batch.targets, shown), learned | targets
        filled = torch.zeros_like(learned).index_fill_(1, run.slot[run.kind == Kind.FILL], True)
        assert bool(filled.any()) == (kind == "stopped")
        assert torch.equal(learned, final.answer[:, here] & ~filled), "every decision of the model is a target once"
        assert torch.equal(shown, torch.where(filled, run.start.mask_id, final.tokens[:, here]))
        blocks = block_of(final.prompt_length, len(answer.tokens), 32)
        spans = [answer.committed_at[blocks[0] == block] for block in range(int(blocks.max()) + 1)]
        spans = [span[span != LATER] for span in spans if bool((span != LATER).any())]
        assert all(int(left.max()) < int(right.min()) for left, right in pairwise(spans))


@pytest.mark.parametrize("kind", ["runs", "stopped"])
def test_a_decoded_answer_is_the_last_state_of_the_replay(kind: str, request: pytest.FixtureRequest) -> None:
    joined = Trajectory.join(request.getfixturevalue(kind))
    for row, answer in enumerate(decoded_answers(joined)):
        final = joined.final(row)
        here = final.exists[0]
        assert answer.finished
        assert torch.equal(answer.tokens, final.tokens[0, here])
        decided = answer.committed_at != LATER
        assert torch.equal(answer.committed_at[decided], final.committed_at[0, here][decided])


def test_what_lies_behind_the_end_is_masked_or_in_compat_shown_as_end_tokens() -> None:
    """Prompt 1, then 2 at step 0, the end token 0 at step 2, and two slots behind it that nobody decided."""
    answer = DecodedAnswer(torch.tensor([1, 2, 0, 0, 0]), torch.tensor([ALWAYS, 0, 2, LATER, LATER]), 1, end_id=0)
    first, second = in_order(answer, MASK)
    assert first.tokens.tolist() == [[1, MASK, MASK, MASK, MASK]]
    assert second.tokens.tolist() == [[1, 2, MASK, MASK, MASK]]
    assert [batch.weights.tolist() for batch in (first, second)] == [[[0, 1, 0, 0, 0]], [[0, 0, 1, 0, 0]]]
    source = TrajectorySamples([answer], batch_tokens=1, seed=0, end_padding=6)
    shown = sorted(batch.tokens[0].tolist() for batch in epoch_of(source, MASK))
    assert shown == [[1, 2, MASK, 0, 0, 0], [1, MASK, MASK, 0, 0, 0]]
    with pytest.raises(DataError, match="does not fit"):
        TrajectorySamples([answer], batch_tokens=1, seed=0, end_padding=4)


def test_given_text_inside_an_answer_is_always_shown(llada: unmask.Model) -> None:
    """Prompt, a hole of two, a word that is given, a hole of two."""
    (run,) = decoded(llada, [[51, 53, None, None, 45, None, None]], 1)  # type: ignore[list-item]
    (answer,) = decoded_answers(run)
    samples = in_order(answer, 56)
    assert all(batch.tokens[0, 4] == 45 and not batch.masked[0, 4] for batch in samples)
    assert sum(int((batch.weights > 0).sum()) for batch in samples) == 4


def test_an_answer_that_has_holes_is_refused(runs: list[Trajectory]) -> None:
    whole = runs[0]
    early = whole.step < 3
    cut = Trajectory(
        whole.start, *(getattr(whole, name)[early] for name in ("row", "step", "kind", "slot", "token", "confidence")),
        passes=whole.passes[:3], facts={},
    )  # fmt: skip
    assert [answer.finished for answer in decoded_answers(cut)] == [False]
    with pytest.raises(DataError, match="not decoded to its end"):
        TrajectorySamples(decoded_answers(cut), batch_tokens=64, seed=0)
    with pytest.raises(DataError, match="no trajectory to learn from"):
        TrajectorySamples([], batch_tokens=64, seed=0)


def test_only_batches_that_know_what_is_hidden_can_be_replayed() -> None:
    with pytest.raises(TypeError, match="CleanBatch"):
        Replay(MASK)(clean_batch(), NO_NOISE)


def made_up(count: int = 5) -> list[DecodedAnswer]:
    """Answers of several lengths over the helpers' vocabulary, two tokens a step, a tail of three behind the end."""
    answers = []
    for number in range(count):
        length = 4 + 2 * (number % 3)
        words = torch.arange(1, 1 + length)
        tokens = torch.cat((words[:2], words, torch.zeros(3, dtype=torch.long)))
        steps = torch.cat((torch.full((2,), ALWAYS), torch.arange(length) // 2, torch.full((3,), LATER)))
        answers.append(DecodedAnswer(tokens, steps, 2, end_id=0, label="even" if number % 2 == 0 else "odd"))
    return answers


def test_every_sample_comes_once_an_epoch_and_in_another_order_in_the_next() -> None:
    answers = made_up()
    source = TrajectorySamples(answers, batch_tokens=40, seed=1)
    wanted = sorted((len(answer.tokens), step) for answer in answers for step in answer.steps)
    orders = []
    for epoch in range(2):
        source.state = {"epoch": epoch, "taken": 0}
        seen = []
        for batch in epoch_of(source, MASK):
            assert batch.tokens.numel() <= 40
            for row in range(len(batch.tokens)):
                targets = batch.weights[row] > 0
                assert int(targets.sum()) == 2
                seen.append((int(batch.exists[row].sum()), (int(targets.to(torch.int8).argmax()) - 2) // 2))
        assert sorted(seen) == wanted
        orders.append(seen)
    assert orders[0] != orders[1]


def test_a_source_goes_on_from_its_counters() -> None:
    source = TrajectorySamples(made_up(), batch_tokens=30, seed=2)
    source.take(4)
    state = source.state
    expected = source.take(9)
    again = TrajectorySamples(made_up(), batch_tokens=30, seed=2)
    again.state = state
    for one, other in zip(expected, again.take(9), strict=True):
        assert isinstance(one, ReplayBatch) and isinstance(other, ReplayBatch)
        assert torch.equal(one.hidden, other.hidden) and torch.equal(one.tokens, other.tokens)
    assert source.state["epoch"] > 0


def test_padding_does_not_exist_and_changes_no_loss() -> None:
    answers = [made_up()[0], made_up()[2]]
    model, objective = tiny_model(), VerifiedOrder(bold=0.0, block_length=4)
    together = [objective(model, batch) for batch in epoch_of(TrajectorySamples(answers, batch_tokens=999, seed=0), 31)]
    alone = [objective(model, batch) for answer in answers for batch in in_order(answer, MASK)]
    assert len(together) == 1 and len(alone) == 6
    rows = [value for loss in alone for value in loss.rows.tolist()]
    assert sorted(together[0].rows.tolist()) == pytest.approx(sorted(rows), rel=1e-5)


def replay_run(folder: Path | None = None, steps: int = 6) -> TrainingRun:
    model = tiny_model()
    return TrainingRun(
        model=model,
        batches=TrajectorySamples(made_up(), batch_tokens=40, seed=1),
        corruption=Replay(MASK),
        objective=VerifiedOrder(block_length=4),
        optimizers=[torch.optim.AdamW(model.parameters(), lr=1e-2)],
        settings=RunSettings(steps=steps, folder=folder, schedule=Schedule(warmup_steps=2), checkpoint_minutes=0.0),
    )


def test_the_training_loop_learns_from_samples_and_resumes_bit_by_bit(tmp_path: Path) -> None:
    whole = losses_of(replay_run(steps=6))
    assert whole[-1] < whole[0]
    first = losses_of(replay_run(tmp_path, steps=6), stop=3)
    assert first + losses_of(replay_run(tmp_path, steps=6), resume=True) == whole
