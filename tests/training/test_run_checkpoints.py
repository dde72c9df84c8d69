import errno
from pathlib import Path
from typing import Any

import pytest
import torch

from training.helpers import losses_of, tiny_run
from unmask.training.checkpoints import TrainingError, latest_checkpoint, read_checkpoint, write_checkpoint


def full_disk(*arguments: Any, **options: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def half_a_write(content: Any, file: Any) -> None:
    file.write(b"half of a checkpoint")
    full_disk()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_full_disk_is_said_and_the_older_checkpoint_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_checkpoint(tmp_path, 1, {"weights": torch.ones(2)})
    monkeypatch.setattr("torch.save", half_a_write)
    with pytest.raises(TrainingError, match=r"step-00000002\.pt: No space left on device; .*step-00000001\.pt"):
        write_checkpoint(tmp_path, 2, {"weights": torch.ones(2)})
    assert names(tmp_path) == ["step-00000001.pt"]
    assert torch.equal(read_checkpoint(tmp_path / "step-00000001.pt")["weights"], torch.ones(2))


def test_a_write_that_falls_short_inside_torch_is_an_error_of_the_same_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(*arguments: Any) -> None:
        raise RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed\nand more")

    monkeypatch.setattr("torch.save", short)
    with pytest.raises(TrainingError, match="file write failed; last good checkpoint: none"):
        write_checkpoint(tmp_path, 1, {})
    assert names(tmp_path) == []


def test_a_run_on_a_full_disk_stops_and_can_be_resumed_bit_by_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = losses_of(tiny_run())
    with monkeypatch.context() as patched:
        saves, save = 0, torch.save

        def third_is_too_much(content: Any, file: Any) -> None:
            nonlocal saves
            saves += 1
            (half_a_write if saves == 3 else save)(content, file)

        patched.setattr("torch.save", third_is_too_much)
        with pytest.raises(TrainingError, match="Make room, then resume"):
            losses_of(tiny_run(tmp_path, checkpoint_minutes=0.0))
    assert names(tmp_path) == ["step-00000001.pt", "step-00000002.pt"]
    assert losses_of(tiny_run(tmp_path), resume=True) == whole[2:]


def test_metrics_on_a_full_disk_stop_the_run_and_keep_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Path.open

    def open_but_not_metrics(path: Path, *arguments: Any, **options: Any) -> Any:
        if path.name == "metrics.jsonl" and latest_checkpoint(tmp_path) is not None:
            full_disk()
        return opened(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", open_but_not_metrics)
    with pytest.raises(TrainingError, match=r"metrics\.jsonl: No space left"):
        losses_of(tiny_run(tmp_path, metrics_steps=1, checkpoint_minutes=0.0))
    assert names(tmp_path) == ["metrics.jsonl", "step-00000001.pt"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TrainingError, match="file/run"):
        losses_of(tiny_run(tmp_path / "file" / "run"))


def test_what_a_killed_run_left_is_swept_up_and_its_half_line_dropped(tmp_path: Path) -> None:
    losses_of(tiny_run(tmp_path, metrics_steps=1, checkpoint_minutes=0.0), stop=3)
    (tmp_path / "step-00000004.tmp").write_bytes(b"half of a checkpoint")
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"loss": 3.1')
    whole = losses_of(tiny_run())
    assert losses_of(tiny_run(tmp_path, metrics_steps=1), resume=True) == whole[3:]
    assert not list(tmp_path.glob("*.tmp"))
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 8


def test_a_checkpoint_of_other_parameters_is_refused(tmp_path: Path) -> None:
    losses_of(tiny_run(tmp_path, steps=1))
    path = tmp_path / "step-00000001.pt"
    content = read_checkpoint(path)
    del content["model"]["norm.weight"]
    torch.save(content, path)
    with pytest.raises(TrainingError, match=r"does not fit this run.*norm\.weight"):
        losses_of(tiny_run(tmp_path), resume=True)
