"""What every test shares: one thread (these models are tiny), and the two reference checkpoints, loaded once."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import unmask
from unmask.models.predictor import BackbonePredictor

torch.set_num_threads(1)

DATA = Path(__file__).parent / "data"
REFERENCE = DATA / "reference"


def reference_model(family: str) -> unmask.Model:
    return unmask.load(REFERENCE / "ckpt" / family, device="cpu")


@pytest.fixture(scope="session")
def llada() -> unmask.Model:
    return reference_model("llada")


@pytest.fixture(scope="session")
def dream() -> unmask.Model:
    return reference_model("dream")


@pytest.fixture(scope="session")
def models(llada: unmask.Model, dream: unmask.Model) -> dict[str, unmask.Model]:
    return {"llada": llada, "dream": dream}


@pytest.fixture(scope="session")
def block_causal() -> unmask.Model:
    """The LLaDA reference model under block-causal attention, blocks of 8."""
    loaded = unmask.load(REFERENCE / "ckpt" / "llada", device="cpu", attention="block_causal", block_length=8)
    predictor = loaded.predictor
    assert isinstance(predictor, BackbonePredictor)
    return replace(loaded, predictor=predictor)
