"""How methods are written on the command line."""

import pytest

import unmask
from unmask.bench.contestants import GRIDS, Contestant, grid, line_up, parse
from unmask.errors import RequestError, UnknownNameError


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("factor", Contestant("factor", "factor")),
        ("factor @ dual", Contestant("factor @ dual", "factor", cache="dual")),
        ("factor@whole", Contestant("factor @ whole", "factor", "whole")),
        (
            " threshold(threshold=0.7) @ prefix(refresh=4) @ sequential(block_length=8)",
            Contestant(
                "threshold(threshold=0.7) @ sequential(block_length=8) @ prefix(refresh=4)",
                "threshold(threshold=0.7)",
                "sequential(block_length=8)",
                "prefix(refresh=4)",
            ),
        ),
    ],
)
def test_parts_behind_the_decoder_are_known_by_their_names(text: str, wanted: Contestant) -> None:
    assert parse(text) == wanted


def test_defaults_hold_for_what_a_method_does_not_name() -> None:
    assert parse("factor @ none", "whole", "dual") == Contestant("factor @ whole @ none", "factor", "whole", "none")
    assert parse("factor", cache="dual").cache == "dual"


def test_a_method_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(RequestError, match="names no decoder"):
        parse(" @ dual")
    with pytest.raises(RequestError, match='has two caches, "dual" and "prefix"'):
        parse("factor @ dual @ prefix")
    with pytest.raises(UnknownNameError, match=r'no schedule or cache named "duel"; .* Did you mean "dual"'):
        parse("factor @ duel")
    with pytest.raises(UnknownNameError, match=r"known: .*whole"):
        parse("factor @ ")


def test_the_grid_plans_steps_for_the_whole_canvas_rounded_up() -> None:
    assert [method.decoder for method in grid("table", 100)] == [
        "low-confidence",
        "low-confidence(steps=50)",
        "low-confidence(steps=25)",
        "low-confidence(steps=13)",
        "threshold(threshold=0.9)",
        "threshold(threshold=0.7)",
        "threshold(threshold=0.5)",
    ]
    with pytest.raises(UnknownNameError, match='no grid named "tabel"'):
        grid("tabel", 100)


@pytest.mark.parametrize("name", [name for name in GRIDS if name != "table"])
def test_every_method_of_a_grid_runs_beside_the_others(name: str, llada: unmask.Model) -> None:
    methods = line_up(grid(name, 128), llada.facts)
    assert len(methods) == len(grid(name, 128)) + 2, "no two methods of a grid are the same"


def test_a_grid_with_a_cache_stands_beside_the_baselines_without(llada: unmask.Model) -> None:
    names = [method.name for method, _ in line_up(grid("table", 8, cache="dual"), llada.facts)]
    assert names[:4] == ["1 token/step", "threshold 0.9", "1 token/step @ dual", "2 tokens/step @ dual"]
    assert len(names) == 9


def test_a_method_cannot_make_itself_a_baseline(llada: unmask.Model) -> None:
    methods = line_up([Contestant("mine", "factor", baseline="A")], llada.facts)
    assert [method.baseline for method, _ in methods] == ["A", "B", ""]
