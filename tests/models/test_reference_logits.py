"""Both reference checkpoints give the logits that were recorded from the public implementations."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from unmask.models.backbone import Backbone, Block, Rotary
from unmask.models.checkpoints import load_checkpoint

REFERENCE = Path(__file__).parents[1] / "data" / "reference"
TOLERANCE = 2e-4

torch.set_num_threads(1)


class Case:
    """A reference model with its recorded tensors."""

    def __init__(self, name: str) -> None:
        self.backbone: Backbone = load_checkpoint(REFERENCE / "ckpt" / name, device="cpu").backbone
        self.recorded = load_file(REFERENCE / "logits" / f"{name}.safetensors")

    def __getitem__(self, name: str) -> Tensor:
        return self.recorded[name]

    def logits(self, tokens: Tensor, positions: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        with torch.no_grad():
            return self.backbone(tokens, positions, mask)


class Kept:
    """Keys and values of every slot; rows that are computed again overwrite theirs."""

    def __init__(self, backbone: Backbone, slots: int) -> None:
        config = backbone.config
        shape = (config.num_layers, 2, 1, config.num_key_heads, slots, config.head_size)
        self.backbone, self.store = backbone, torch.zeros(shape)

    def logits(self, tokens: Tensor, rows: Tensor, mask: Tensor | None = None) -> Tensor:
        """Logits of some rows, attending to all slots that were ever computed and that the mask allows."""

        def run_block(block: Block, layer: int, x: Tensor, rotary: Rotary, mask: Tensor | None) -> Tensor:
            q, k, v = block.project(x, rotary)
            self.store[layer, 0].index_copy_(2, rows, k)
            self.store[layer, 1].index_copy_(2, rows, v)
            x = x + block.attend(q, self.store[layer, 0], self.store[layer, 1], mask)
            return x + block.feed(x)

        with torch.no_grad():
            return self.backbone.logits(self.backbone.run(tokens[:, rows], rows[None], mask, run_block))


@pytest.fixture(scope="module", params=["llada", "dream"])
def case(request: pytest.FixtureRequest) -> Case:
    return Case(request.param)


@pytest.fixture(scope="module")
def llada() -> Case:
    return Case("llada")


@pytest.fixture(scope="module")
def dream() -> Case:
    return Case("dream")


def assert_close(got: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(got, wanted, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", ["all_masked", "partial"])
def test_a_plain_pass_gives_the_recorded_logits(case: Case, name: str) -> None:
    assert_close(case.logits(case[f"{name}.input_ids"]), case[f"{name}.logits"])


def test_a_batch_gives_the_recorded_logits(llada: Case) -> None:
    assert_close(llada.logits(llada["batch2.input_ids"]), llada["batch2.logits"])


def test_hidden_states_between_the_blocks_are_the_recorded_ones(case: Case) -> None:
    tokens = case["partial.input_ids"]
    seen = []

    def run_block(block: Block, layer: int, x: Tensor, rotary: Rotary, mask: Tensor | None) -> Tensor:
        seen.append(x)
        return block(x, rotary, mask)

    with torch.no_grad():
        last = case.backbone.run(tokens, torch.arange(tokens.shape[1])[None], None, run_block)
    for at, hidden in enumerate([*seen, last]):
        assert_close(hidden, case[f"partial.hidden_{at}"])


def test_shadow_slots_with_repeated_positions_and_their_own_mask(llada: Case) -> None:
    got = llada.logits(
        llada["wino_layout.input_ids"],
        llada["wino_layout.position_ids"][None],
        llada["wino_layout.attention_mask"][:, 0].bool(),
    )
    assert_close(got, llada["wino_layout.logits"])


def test_repeated_positions_under_full_attention(llada: Case) -> None:
    got = llada.logits(llada["position_shift.input_ids"], llada["position_shift.position_ids"][None])
    assert_close(got, llada["position_shift.logits"])


def test_block_causal_attention(case: Case) -> None:
    allowed = case["block_causal_16.attention_allowed"][:, 0].bool()
    assert_close(case.logits(case["block_causal_16.input_ids"], mask=allowed), case["block_causal_16.logits"])


def test_block_causal_attention_on_kept_keys(case: Case) -> None:
    tokens, allowed = case["block_causal_16.input_ids"], case["block_causal_16.attention_allowed"][:, 0].bool()
    slots, length = tokens.shape[1], int(case["block_causal_16_cached.cache_length"])
    kept = Kept(case.backbone, slots)
    # the recorded cache was filled by a pass over the prompt and two blocks
    first = torch.arange(length + 16)
    kept.logits(tokens, first, allowed[:, first])
    rest = torch.arange(length, slots)
    assert_close(kept.logits(tokens, rest, allowed[:, rest]), case["block_causal_16_cached.logits"])


@pytest.mark.parametrize("policy", ["prefix_cache", "dual_cache"])
def test_stale_keys_of_the_slots_that_are_not_computed_again(case: Case, policy: str) -> None:
    before, after = case["cache.input_ids_full"], case["cache.input_ids_updated"]
    slots = before.shape[1]
    start, end = case["cache.block"].tolist()
    kept = Kept(case.backbone, slots)
    assert_close(kept.logits(before, torch.arange(slots)), case["cache.logits_full"])
    rows = torch.arange(start, slots if policy == "prefix_cache" else end)
    recorded = case["prefix_cache.logits_suffix" if policy == "prefix_cache" else "dual_cache.logits_block"]
    assert_close(kept.logits(after, rows), recorded)


def test_pads_on_the_left_do_not_exist_for_the_rows_behind_them(dream: Case) -> None:
    tokens, exists = dream["left_pad.input_ids"], dream["left_pad.attention_mask"].bool()
    mask = exists[:, None, :].expand(-1, tokens.shape[1], -1)
    got = dream.logits(tokens, dream["left_pad.position_ids"], mask)
    pads = int((~exists).sum())
    assert pads == 5
    assert_close(got[:, pads:], dream["left_pad.logits_after_pad"])


def test_every_recorded_tensor_is_looked_at() -> None:
    """A case that is added to the files must be added here."""
    covered = {
        "all_masked", "partial", "batch2", "wino_layout", "position_shift", "block_causal_16", "block_causal_16_cached",
        "cache", "prefix_cache", "dual_cache", "left_pad",
    }  # fmt: skip
    for name in ("llada", "dream"):
        recorded = load_file(REFERENCE / "logits" / f"{name}.safetensors")
        assert {tensor.partition(".")[0] for tensor in recorded} <= covered
