"""What `inspect` tells, and whether its memory estimate deserves the name."""

import json
import shutil
import weakref
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from unmask.errors import CheckpointError
from unmask.models import inspection
from unmask.models.checkpoints import load_checkpoint
from unmask.models.config import BackboneConfig
from unmask.models.inspection import count_parameters, describe, estimate_memory, inspect_checkpoint
from unmask.models.tiny import tiny_backbone

REFERENCE = Path(__file__).parents[1] / "data" / "reference" / "ckpt"
FAMILIES = ["llada", "dream"]

torch.set_num_threads(1)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_description_names_every_fact_a_decoder_depends_on(name: str) -> None:
    told = inspect_checkpoint(REFERENCE / name)
    assert told["family"] == name and told["shift"] == {"llada": 0, "dream": 1}[name]
    mask, turn = {"llada": ((56, "<|mdm_mask|>"), "<|eot_id|>"), "dream": ((55, "<|mask|>"), "<|im_end|>")}[name]
    assert (told["mask"]["id"], told["mask"]["token"]) == mask and told["banned"] == [told["mask"]]
    assert [end["token"] for end in told["ends"]] == ["<|endoftext|>", turn]
    assert told["begin"]["token"] == {"llada": "<|startoftext|>", "dream": "<|beginoftext|>"}[name]
    assert told["chat_template"] is True and told["max_length"] == 512
    assert told["attention"] == "bidirectional" and told["block_length"] is None
    assert told["dtype"] == "float32" and told["tokenizer_size"] == 64
    stored = load_file(REFERENCE / name / "model.safetensors")
    assert told["parameters"] == sum(tensor.numel() for tensor in stored.values())
    assert told["stored"]["parameters_by_dtype"] == {"F32": told["parameters"]}
    assert json.loads(json.dumps(told)) == told


@pytest.mark.parametrize("name", FAMILIES)
def test_a_loaded_model_is_described_as_its_folder_is(name: str) -> None:
    folder = REFERENCE / name
    loaded = describe(load_checkpoint(folder, device="cpu"))
    stored = inspect_checkpoint(folder)
    assert loaded.pop("device") == "cpu" and stored.pop("stored") is not None
    assert loaded == stored
    block_causal = describe(load_checkpoint(folder, device="cpu", attention="block_causal", block_length=8))
    assert (block_causal["attention"], block_causal["block_length"]) == ("block_causal", 8)


def test_inspection_reads_no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr("unmask.models.checkpoints.reading.read_tensors", refuse)
    monkeypatch.setattr("unmask.models.checkpoints.read_tensors", refuse)
    assert inspect_checkpoint(REFERENCE / "dream")["parameters"] == 308_352


def test_inspection_finds_tensors_that_do_not_fit(tmp_path: Path) -> None:
    folder = shutil.copytree(REFERENCE / "dream", tmp_path / "dream")
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"1 missing: model\.norm\.weight"):
        inspect_checkpoint(folder)


def test_a_hub_model_is_described_without_its_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = shutil.copytree(REFERENCE / "dream", tmp_path / "dream")
    (folder / "model.safetensors").unlink()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"torch_dtype": "bfloat16"}))
    asked: dict[str, Any] = {}

    def download(repository: str, **options: Any) -> str:
        asked.update(options)
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    told = inspect_checkpoint("someone/dream")
    assert "*.safetensors" not in asked["allow_patterns"]
    assert told["stored"] is None and told["dtype"] == "bfloat16" and told["parameters"] == 308_352


def test_a_tied_head_is_counted_once() -> None:
    untied, tied = (count_parameters(BackboneConfig(64, 96, 3, 6, 6, 256, tied=tied)) for tied in (False, True))
    assert untied - tied == 64 * 96


def test_memory_of_the_parts_by_hand() -> None:
    config = BackboneConfig(vocab_size=100, width=8, num_layers=3, num_heads=4, num_key_heads=2, feed_width=16)
    parts = estimate_memory(config, length=10, batch=2, dtype=torch.bfloat16, cache=True)
    weights = 2 * 100 * 8 + 8 + 3 * (2 * 8 * 8 + 2 * 8 * 4 + 3 * 8 * 16 + 2 * 8)
    assert parts["weights"] == 2 * weights
    assert parts["kv"] == 2 * 3 * (2 * 10) * (2 * 2) * 2  # keys and values, layers, slots, key heads of size 2, bytes
    assert parts["logits"] == 2 * 10 * 100 * 2
    assert parts["total"] == sum(parts[name] for name in ("weights", "kv", "logits", "activations"))
    few = estimate_memory(config, length=10, batch=2, dtype=torch.bfloat16, cache=False, asked=3)
    assert few["kv"] == 0 and few["logits"] == 2 * 3 * 100 * 2


def test_the_weights_of_the_published_models_are_sixteen_gigabytes() -> None:
    config = BackboneConfig(126464, 4096, 32, 32, 32, 12288)
    parts = estimate_memory(config, length=1024, batch=1, dtype=torch.bfloat16, cache=True)
    assert parts["weights"] == 16_031_162_368 and parts["kv"] == 2 * 32 * 1024 * 4096 * 2


class PeakMemory(TorchDispatchMode):
    """Counts the bytes of all tensors that are alive at once, inputs and weights aside."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[int, int] = {}
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, Tensor) and not func.is_view:
                storage = tensor.untyped_storage()
                key = storage._cdata
                if key not in self.alive:
                    self.alive[key] = storage.nbytes()
                    weakref.finalize(storage, self.alive.pop, key, None)
        self.peak = max(self.peak, sum(self.alive.values()))
        return result


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "sizes",
    [
        {"width": 128, "num_heads": 4, "num_key_heads": 4, "feed_width": 384},
        {"width": 128, "num_heads": 8, "num_key_heads": 2, "feed_width": 128},
        {"width": 64, "num_heads": 2, "num_key_heads": 2, "feed_width": 512},
    ],
)
def test_the_estimate_of_activations_is_near_the_truth(sizes: dict[str, int], dtype: torch.dtype) -> None:
    backbone = tiny_backbone(vocab_size=50, **sizes).to(dtype)
    tokens = torch.zeros(2, 300, dtype=torch.long)
    mask = torch.ones(2, 300, 300, dtype=torch.bool)
    mode = PeakMemory()
    with torch.no_grad(), mode:
        backbone.hidden(tokens, None, mask.clone())
    estimate = estimate_memory(backbone.config, 300, 2, dtype, cache=False)["activations"]
    assert 0.9 * mode.peak < estimate < 2.0 * mode.peak, f"measured {mode.peak}, estimated {estimate}"


def test_the_default_length_is_within_the_trained_context() -> None:
    assert inspect_checkpoint(REFERENCE / "llada")["memory"]["length"] == 512 < inspection.LENGTH
