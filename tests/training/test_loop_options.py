"""What a run may do besides stepping: evaluate, recompute, train an adapter, follow other schedules."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from training.helpers import MASK, copy_batches, losses_of, tiny_config, tiny_run
from unmask.models.adapters import Adapter, LoraConfig, adapter_parameters, attach
from unmask.models.backbone import Backbone
from unmask.models.checkpoints.llada import tensor_names
from unmask.training.loop import Evaluation, RunSettings, Schedule, TrainingRun, read_checkpoint, train
from unmask.training.recipes.sft import fresh_model, sft


class Look:
    """Notes the weights it is shown."""

    def __init__(self) -> None:
        self.seen: list[dict[str, torch.Tensor]] = []

    def __call__(self, model: Backbone) -> Mapping[str, float]:
        assert not model.training and not torch.is_grad_enabled()
        torch.rand(3)  # a measurement may draw numbers
        self.seen.append({name: value.clone() for name, value in model.state_dict().items()})
        return {"eval/accuracy": len(self.seen) / 10}


def test_an_evaluation_sees_the_averaged_weights_and_changes_no_loss(tmp_path: Path) -> None:
    look = Look()
    run = tiny_run(tmp_path, steps=8, metrics_steps=4, evaluation=Evaluation(look, steps=3))
    records = list(train(run))
    assert [record.loss for record in records] == losses_of(tiny_run(steps=8))
    assert [record.step for record in records if record.evaluation] == [3, 6, 8]
    averaged = read_checkpoint(tmp_path / "step-00000008.pt")["ema"]
    assert all(torch.equal(look.seen[-1][name], value) for name, value in averaged.items())
    assert any(not torch.equal(look.seen[-1][name], value) for name, value in run.model.state_dict().items())
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "eval/accuracy" in line] == [3, 6, 8]
    assert [line["step"] for line in lines if "loss" in line] == [4, 8]


def test_time_of_evaluations_is_no_training_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 0.0

    def passing() -> float:
        nonlocal clock
        clock += 0.5
        return clock

    def slow(model: Backbone) -> dict[str, float]:
        nonlocal clock
        clock += 1000.0
        return {"eval/accuracy": 1.0}

    monkeypatch.setattr("unmask.training.loop.time.monotonic", passing)
    records = list(train(tiny_run(steps=None, minutes=1.0, evaluation=Evaluation(slow, minutes=0.3))))
    assert 2 <= sum(bool(record.evaluation) for record in records) <= 4
    assert records[-1].seconds < 70.0


def test_a_run_that_is_resumed_between_evaluations_repeats_its_losses(tmp_path: Path) -> None:
    whole = losses_of(tiny_run())
    looking = {"evaluation": Evaluation(Look(), steps=2), "checkpoint_minutes": 0.0}
    first = losses_of(tiny_run(tmp_path, **looking), stop=5)
    assert first + losses_of(tiny_run(tmp_path, **looking), resume=True) == whole


def test_recomputed_blocks_give_the_same_gradients() -> None:
    weights = []
    for recompute in (False, True):
        run = tiny_run()
        run.model.recompute = recompute
        losses_of(run)
        weights.append(run.model.state_dict())
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())


def kept_by_a_forward_pass(recompute: bool) -> int:
    """Numbers that autograd holds until the backward pass."""
    sizes: list[int] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        sizes.append(tensor.numel())
        return tensor

    model = fresh_model(tiny_config(), 0)
    model.recompute = recompute
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        model.hidden(torch.zeros(2, 30, dtype=torch.long))
    return sum(sizes)


def test_a_forward_pass_for_recomputing_keeps_little_more_than_the_inputs_of_blocks() -> None:
    assert kept_by_a_forward_pass(recompute=True) < kept_by_a_forward_pass(recompute=False) / 4


def adapter_run(folder: Path | None = None, *, dropout: float = 0.0, **settings: object) -> tuple[TrainingRun, Adapter]:
    model = fresh_model(tiny_config(tied=False, normed_embedding=False), 0)
    lora = LoraConfig(4, 4.0, ("q_proj", "v_proj", "ff_out"), dropout=dropout)
    adapter = attach(model, lora, tensor_names(model.config))
    usual = {"steps": 6, "schedule": Schedule(warmup_steps=0), "folder": folder, "checkpoint_minutes": 0.0}
    return sft(model, copy_batches(), RunSettings(**(usual | settings)), mask_id=MASK), adapter  # type: ignore[arg-type]


def test_only_the_adapter_is_trained_and_stored(tmp_path: Path) -> None:
    run, _ = adapter_run(tmp_path)
    before = {name: value.clone() for name, value in run.model.state_dict().items()}
    losses_of(run)
    moved = {name for name, value in run.model.state_dict().items() if not torch.equal(value, before[name])}
    assert moved and all(".lora_" in name for name in moved)
    content = read_checkpoint(tmp_path / "step-00000006.pt")
    assert content["model"].keys() == content["ema"].keys()
    assert len(content["model"]) == len(adapter_parameters(run.model)) == 12
    assert all(".lora_" in name for name in content["model"])


def test_an_adapter_with_dropout_is_resumed_bit_by_bit(tmp_path: Path) -> None:
    torch.manual_seed(1)
    whole = losses_of(adapter_run(dropout=0.5)[0])
    torch.manual_seed(2)
    first = losses_of(adapter_run(tmp_path, dropout=0.5)[0], stop=2)
    torch.manual_seed(3)
    assert first + losses_of(adapter_run(tmp_path, dropout=0.5)[0], resume=True) == whole
    assert whole != losses_of(adapter_run()[0])


def test_a_schedule_may_stay_or_fall_as_a_cosine() -> None:
    constant = Schedule(warmup_steps=0, decay_start=1.0)
    assert [constant.factor(step, progress) for step, progress in ((0, 0.0), (50, 0.5), (100, 1.0))] == [1.0] * 3
    cosine = Schedule(warmup_steps=0, decay_start=0.0, last=0.1, shape="cosine")
    assert [cosine.factor(9, progress) for progress in (0.0, 0.5, 1.0)] == pytest.approx([1.0, 0.55, 0.1])
    assert cosine.factor(9, 0.25) > 0.8


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"micro_batches": 0}, "micro_batches must be at least 1"),
        ({"clip": 0.0}, "clip must be above 0"),
        ({"ema_decay": 1.0}, "ema_decay"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        RunSettings(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("field", [{"warmup_steps": -1}, {"decay_start": 1.5}, {"last": -0.1}])
def test_schedules_out_of_range_are_refused(field: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(field))):
        Schedule(**field)  # type: ignore[arg-type]
