"""Methods under their papers' names: every setting is a run that goes together, and what is said beside it wins."""

from dataclasses import replace

import pytest

import unmask
from unmask.bench.contestants import of_preset
from unmask.errors import UnknownNameError
from unmask.generation import Recipe, resolve
from unmask.presets import PRESETS, Setting, preset

SPECS = [f"{name}:{task}" if task else name for name, one in PRESETS.items() for task in ("", *one.settings)]


@pytest.mark.parametrize("spec", SPECS)
def test_every_published_setting_is_a_run_that_goes_together(spec: str, llada: unmask.Model) -> None:
    parts = preset(spec)
    attention = "block_causal" if "finished-blocks" in str(parts.cache) else "bidirectional"
    attention = "causal" if parts.schedule == "next-token" else attention
    facts = replace(llada.facts, attention=attention, shift=int(attention == "causal"))
    decoder, schedule, cache, length = resolve(spec, None, None, None, None)
    recipe = Recipe.of(decoder, schedule, cache, facts=facts)
    assert recipe.specs() == of_preset(spec).recipe(facts).specs()
    assert length == parts.length and isinstance(length, int)


def test_a_setting_changes_what_it_names_and_keeps_the_rest() -> None:
    assert preset("wino") == Setting("wino(draft=0.6, verify=0.9)", "sequential(block_length=128)", None, 256)
    assert preset("wino:llada/mbpp") == Setting(
        "wino(draft=0.8, verify=0.9)", "sequential(block_length=128)", None, 256
    )
    assert preset(" d2f : dream/mbpp ").schedule == "pipelined(block_length=48, add=0.1, force=0.95)"
    assert preset("d2f:dream/mbpp").cache == "finished-blocks"


def test_what_is_said_beside_a_preset_wins() -> None:
    assert resolve("fast-dllm-dual", None, None, None, None) == (
        "threshold(threshold=0.9)",
        "sequential(block_length=32)",
        "dual",
        256,
    )
    assert resolve("fast-dllm-dual", "factor", "whole", "none", 40) == ("factor", "whole", "none", 40)
    assert resolve(None, None, None, None, None) == (None, None, None, 128)


def test_generate_takes_a_preset(llada: unmask.Model) -> None:
    by_name = unmask.generate(llada, ["1+2="], preset="fast-dllm-dual", length=20)[0]
    by_parts = unmask.generate(
        llada, ["1+2="], decoder="threshold", schedule="sequential(block_length=32)", cache="dual", length=20
    )[0]
    assert (by_name.tokens, by_name.nfe, by_name.rows_computed) == (
        by_parts.tokens,
        by_parts.nfe,
        by_parts.rows_computed,
    )
    assert len(by_name.canvas) - len(unmask.generation.encode(llada, "1+2=")) == 20


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("wion", r'no preset named "wion"; known: .*Did you mean "wino"'),
        ("wino:llada/gsm8", r'no setting of "wino" named "llada/gsm8"; known: .*Did you mean "llada/gsm8k"'),
        ("eb-sampler:gsm8k", r'no setting of "eb-sampler" named "gsm8k"; known: none'),
        ("", r'no preset named ""'),
    ],
)
def test_an_unknown_preset_or_setting_gets_the_list(spec: str, says: str) -> None:
    with pytest.raises(UnknownNameError, match=says):
        preset(spec)
