"""Traces of published selection rules: KLASS, dParallel, Fast-dLLM of 2025, and two block-wise baselines.

What each file holds, and how a published parameter translates to our parts, stands in docs/compat.md.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from goldens import DOUBLE, Case, Parts, assert_reproduced, decode, recorded, settings
from unmask.core.schedules import Memory, Sequential, Whole
from unmask.core.state import DenoisingState
from unmask.core.window import Window


@dataclass(frozen=True, slots=True)
class Abandoning(Sequential):
    """KLASS's blocks: what is left of one after its steps stays masked."""

    def window(self, state: DenoisingState, memory: Memory) -> Window:
        window, blocks = Sequential.window(self, state, memory), self.blocks(state)
        inside = window.open & (blocks == blocks.where(window.open, -1).amax(-1, keepdim=True))
        return replace(window, open=inside, must=window.must & inside)


def llada_klass(p: dict[str, Any]) -> Parts:
    schedule = Abandoning(p["block_length"], block_steps=p["steps"] * p["block_length"] // p["gen_length"])
    if p["alg"] == "topk_margin":
        return Parts(f"topk-margin(steps={p['steps']})", schedule, p["gen_length"], sampling=DOUBLE)
    return Parts(klass_spec(p, f"steps={p['steps']}, compat='klass'"), schedule, p["gen_length"], sampling=DOUBLE)


def dream_klass(p: dict[str, Any]) -> Parts:
    return Parts(klass_spec(p, "strict=False"), Whole(), p["max_new_tokens"], sampling=DOUBLE)


def klass_spec(p: dict[str, Any], more: str) -> str:
    bounds = f"confidence={p['conf_threshold']}, divergence={p['kl_threshold']}, history={p['kl_history_length']}"
    pick = {"all": "all", "max_conf": "max-confidence", "min_kl": "min-divergence"}[p["unmask_strategy"]]
    return f"klass({bounds}, pick='{pick}', {more})"


def dparallel(p: dict[str, Any], cache: str = "none") -> Parts:
    ranking = "low-confidence" if cache == "none" else "entropy"  # without a threshold they rank by different scores
    decoder = f"entropy-threshold(threshold={p['threshold']})" if "threshold" in p else f"{ranking}(steps={p['steps']})"
    return Parts(decoder, Sequential(p["block_length"]), p["gen_length"], cache, sampling=DOUBLE)


def dream_dparallel(p: dict[str, Any]) -> Parts:
    decoder = f"entropy-threshold(threshold={p['threshold']}, strict=True)"
    return Parts(decoder, Sequential(p["block_length"]), p["max_new_tokens"])


def fast_2025(p: dict[str, Any], cache: str = "none") -> Parts:
    decoder = f"threshold(threshold={p['threshold']})" if "threshold" in p else f"low-confidence(steps={p['steps']})"
    return Parts(decoder, Sequential(p["block_length"]), p["gen_length"], cache, sampling=DOUBLE)


def wino_plus(p: dict[str, Any]) -> Parts:
    decoder = f"threshold(threshold={p['confidence_threshold']})"
    return Parts(decoder, Sequential(p["block_length"]), p["gen_length"])


def dream_blockwise(p: dict[str, Any]) -> Parts:
    decoder = f"entropy(steps={p['steps']}, compat='dc-leap')"  # whatever the algorithm is called
    return Parts(decoder, Sequential(p["block_length"]), p["max_new_tokens"])


FILES: dict[str, Callable[[dict[str, Any]], Parts]] = {
    "llada/klass": llada_klass,
    "dream/klass": dream_klass,
    "llada/dparallel_nocache": dparallel,
    "llada/dparallel_prefix_cache": lambda p: dparallel(p, "prefix"),
    "llada/dparallel_dual_cache": lambda p: dparallel(p, "dual"),
    "dream/dparallel": dream_dparallel,
    "llada/fastdllm2025_nocache": fast_2025,
    "llada/fastdllm2025_prefix_cache": lambda p: fast_2025(p, "prefix"),
    "llada/fastdllm2025_dual_cache": lambda p: fast_2025(p, "dual"),
    "llada/winoplus_confidence_threshold": wino_plus,
    "dream/dcleap_baseline_blockwise": dream_blockwise,
}

SPILLING = [f"klass/shared/3/s{number:02}" for number in (1, 3, 7, 8, 10)]  # picks surplus slots outside the block


@pytest.mark.parametrize(("name", "params"), settings(FILES))
def test_published_rule_is_reproduced(name: str, params: dict[str, Any]) -> None:
    late = name.startswith("llada/fastdllm2025")
    prepare = without_idle_forwards if late else lambda case: case
    assert_reproduced(name, params, FILES[name](params), prepare=prepare, skip=SPILLING if "klass" in name else ())


def without_idle_forwards(case: Case) -> Case:
    """The case without the forwards that follow a block's opening pass although that one had filled the block."""
    size, traj = case["params"]["block_length"], case["traj"]
    for number, step in enumerate(traj):
        filled = sorted(slot for slot, _ in traj[number - 1])
        assert step or (number and filled == list(range(filled[0], filled[0] + size)) and filled[0] % size == 0)
    done = [step for step in traj if step]
    return case | {"traj": done, "nfe": len(done)}


@pytest.mark.parametrize(("cache", "idle"), [("nocache", 0), ("prefix_cache", 9), ("dual_cache", 8)])
def test_the_forwards_dropped_from_the_traces_of_2025_are_those_of_the_caches(cache: str, idle: int) -> None:
    cases = recorded(f"llada/fastdllm2025_{cache}")["cases"]
    assert sum(case["nfe"] - without_idle_forwards(case)["nfe"] for case in cases) == idle
    for case in cases:  # and a block filled at once always has one
        full = [number for number, step in enumerate(case["traj"]) if len(step) == case["params"]["block_length"]]
        assert cache == "nocache" or all(case["traj"][number + 1] == [] for number in full)


@pytest.mark.slow
def test_klass_cases_that_are_left_out_part_where_a_surplus_pick_leaves_the_block() -> None:
    """There the published quota exceeds the masks left, and a sort of -inf decides which other slots are written."""
    file = recorded("llada/klass")
    spills = {}
    for case in file["cases"]:
        blocks = [{slot // case["params"]["block_length"] for slot, _ in step} for step in case["traj"]]
        if any(len(touched) > 1 for touched in blocks):
            spills[case["id"]] = next(number for number, touched in enumerate(blocks) if len(touched) > 1)
    assert sorted(spills) == SPILLING
    overwriting = [case["id"] for case in file["cases"] if case.get("overwrites") or case.get("prompt_modified")]
    assert set(overwriting) <= set(SPILLING)
    for case in (case for case in file["cases"] if case["id"] in spills):
        decoded = decode("llada", llada_klass(case["params"]), [file["prompts"][case["prompt"]]])[0]
        until = spills[case["id"]]
        assert until > 0 and decoded.steps[:until] == [sorted(step) for step in case["traj"][:until]]
        assert all(pair in case["traj"][until] for pair in decoded.steps[until]), "inside the block it is the same"
