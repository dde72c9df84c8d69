import json
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch

from training.helpers import copy_batches, losses_of, tiny_model, tiny_run
from unmask.training.loop import Schedule, TrainingError, latest_checkpoint, read_checkpoint, train
from unmask.training.objectives import MaskedCrossEntropy


def test_learning_copies_lowers_the_loss() -> None:
    run = tiny_run(steps=40)
    losses = losses_of(run)
    assert len(losses) == 40
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])


@pytest.mark.parametrize("per", ["sample", "target"])
def test_losses_by_label_have_the_scale_of_the_whole_loss(per: Literal["sample", "target"]) -> None:
    run = tiny_run(steps=3)
    run.objective = MaskedCrossEntropy(per=per)
    for record in train(run):
        assert set(record.losses) == {"copy", "even"}
        assert min(record.losses.values()) <= record.loss <= max(record.losses.values())


def test_the_same_run_gives_the_same_losses_and_another_seed_does_not() -> None:
    assert losses_of(tiny_run()) == losses_of(tiny_run())
    assert losses_of(tiny_run(seed=1)) != losses_of(tiny_run())


def test_a_resumed_run_repeats_the_losses_bit_by_bit(tmp_path: Path) -> None:
    whole = losses_of(tiny_run())
    run = tiny_run(tmp_path, checkpoint_minutes=0.0)  # after every step
    first = losses_of(run, stop=5)
    rest = losses_of(tiny_run(tmp_path), resume=True)
    assert first == whole[:5]
    # The checkpoint of a step is written before its record is yielded.
    assert rest == whole[5:]


def test_the_average_is_resumed_too(tmp_path: Path) -> None:
    uncut, cut = tmp_path / "uncut", tmp_path / "cut"
    losses_of(tiny_run(uncut))
    run = tiny_run(cut, checkpoint_minutes=0.0)
    losses_of(run, stop=3)
    losses_of(tiny_run(cut), resume=True)
    one, other = (read_checkpoint(folder / "step-00000008.pt")["ema"] for folder in (uncut, cut))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_only_the_last_two_checkpoints_are_kept_and_no_temporary_file(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, checkpoint_minutes=0.0)
    losses_of(run)
    assert sorted(path.name for path in tmp_path.glob("step*")) == ["step-00000007.pt", "step-00000008.pt"]


def test_metrics_are_written_and_cut_when_resuming_before_their_end(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, metrics_steps=2, checkpoint_minutes=0.0)
    losses_of(run, stop=6)
    latest = latest_checkpoint(tmp_path)
    assert latest is not None
    latest.unlink()  # as if the run had been killed before this checkpoint: the newest one is that of step 5
    again = tiny_run(tmp_path, metrics_steps=2)
    losses_of(again, resume=True)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [2, 4, 6, 8]
    assert {"loss", "loss/copy", "loss/even", "tokens", "seconds", "gradient_norm"} <= lines[0].keys()


def test_a_folder_with_checkpoints_is_not_overwritten(tmp_path: Path) -> None:
    losses_of(tiny_run(tmp_path, steps=2))
    with pytest.raises(TrainingError, match="already has checkpoints"):
        losses_of(tiny_run(tmp_path, steps=2))


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    (tmp_path / "step-00000001.pt").write_bytes(b"half of a file")
    with pytest.raises(TrainingError, match=r"step-00000001\.pt cannot be read"):
        losses_of(tiny_run(tmp_path), resume=True)


def test_a_checkpoint_of_another_seed_is_refused(tmp_path: Path) -> None:
    losses_of(tiny_run(tmp_path, steps=1))
    with pytest.raises(TrainingError, match="seed 0, not 1"):
        losses_of(tiny_run(tmp_path, seed=1), resume=True)


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_checkpoint(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, checkpoint_minutes=0.0)
    good, calls = run.objective, 0

    def breaking(model, batch):  # type: ignore[no-untyped-def]
        nonlocal calls
        calls += 1
        loss = good(model, batch)
        factor = float("nan") if calls > 6 else 1.0
        return replace(loss, total=loss.total * factor)

    run.objective = breaking
    with pytest.raises(TrainingError, match=r"step 4: .*not finite.*step-00000003\.pt"):
        losses_of(run)
    content = read_checkpoint(tmp_path / "step-00000003.pt")
    assert all(value.isfinite().all() for value in content["model"].values())


def test_a_run_needs_an_end() -> None:
    run = tiny_run(steps=None)
    with pytest.raises(TrainingError, match="needs an end"):
        next(train(run))


def test_minutes_end_a_run_with_a_finished_decay(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 100_000, 1))
    monkeypatch.setattr("unmask.training.loop.time.monotonic", lambda: float(next(clock)))
    run = tiny_run(steps=None, minutes=1.0)
    records = list(train(run))
    assert records[-1].progress == 1.0
    assert records[-1].factor < 0.2
    assert 10 < len(records) < 60
    assert [record.factor for record in records[20:]] == sorted((r.factor for r in records[20:]), reverse=True)


def test_time_of_earlier_sittings_counts(tmp_path: Path) -> None:
    run = tiny_run(tmp_path, checkpoint_minutes=0.0)
    losses_of(run, stop=3)
    seconds = read_checkpoint(tmp_path / "step-00000003.pt")["seconds"]
    again = tiny_run(tmp_path, minutes=seconds / 60.0)
    assert losses_of(again, resume=True) == []


def test_the_schedule_warms_up_stays_and_falls() -> None:
    schedule = Schedule(warmup_steps=10, decay_start=0.5, last=0.02)
    assert schedule.factor(0, 0.0) == pytest.approx(0.1)
    assert schedule.factor(9, 0.01) == 1.0
    assert schedule.factor(100, 0.5) == 1.0
    assert schedule.factor(150, 0.75) == pytest.approx(0.51)
    assert schedule.factor(200, 1.0) == pytest.approx(0.02)


def test_large_gradients_are_clipped() -> None:
    run = tiny_run(steps=1, clip=1e-3)
    record = next(iter(train(run)))
    assert record.gradient_norm > 1e-3
    norm = torch.cat([p.grad.flatten() for p in run.model.parameters() if p.grad is not None]).norm()
    assert norm.item() == pytest.approx(1e-3, rel=1e-3)


def test_more_micro_batches_are_accumulated() -> None:
    """One step on four micro-batches moves the weights as their union would, not four times."""
    run = tiny_run(steps=1, micro_batches=4)
    record = next(iter(train(run)))
    rows = sum(len(batch.tokens) for batch in copy_batches().take(4))
    slots = sum(batch.tokens.numel() for batch in copy_batches().take(4))
    assert record.tokens == slots
    assert rows > 4
    assert record.loss == pytest.approx(torch.tensor(31.0).log().item(), rel=0.5)


def test_the_model_is_the_one_given() -> None:
    run = tiny_run(steps=1)
    before = {name: value.clone() for name, value in tiny_model().state_dict().items()}
    losses_of(run)
    assert not all(torch.equal(value, before[name]) for name, value in run.model.state_dict().items())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_model_on_a_gpu_sees_the_same_noise() -> None:
    run = tiny_run(precision="float32")
    on_gpu = tiny_run(model=tiny_model().cuda(), precision="float32")
    assert losses_of(on_gpu) == pytest.approx(losses_of(run), rel=1e-3)
