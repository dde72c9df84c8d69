"""Specs become objects and objects become specs; everything else is refused with a way out."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from unmask.caches import CACHES
from unmask.core.schedules import SCHEDULES, Sequential, Whole
from unmask.decoders import DECODERS, Decoder
from unmask.decoders.quota import MaskgitPlus
from unmask.decoders.threshold import Factor, Threshold
from unmask.errors import PluginError, RequestError, UnknownNameError
from unmask.registry import Registry, describe_fields, one_line, spec_of

REGISTRIES: list[Registry[Any]] = [DECODERS, SCHEDULES, CACHES]


# Reading -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("threshold", Threshold()),
        ("threshold()", Threshold()),
        ("threshold(threshold=0.8)", Threshold(0.8)),
        ("threshold(threshold=-0.5, steps=4)", Threshold(-0.5, steps=4)),
        ("threshold(threshold=1e-3, steps=None,)", Threshold(1e-3, steps=None)),
        (" \n threshold ( threshold = 0.8 ,\n steps = 4 ) ", Threshold(0.8, steps=4)),
        ('factor(compat="fast-dllm")', Factor(compat="fast-dllm")),
        ("maskgit-plus(order_temperature=0.5, compat='dream')", MaskgitPlus(order_temperature=0.5, compat="dream")),
    ],
)
def test_a_spec_is_read(spec: str, expected: Decoder) -> None:
    assert DECODERS.make(spec) == expected


def test_an_object_passes_through() -> None:
    mine = Threshold(0.5)
    assert DECODERS.make(mine) is mine


@pytest.mark.parametrize("other", [Threshold, Sequential(4), None, 0.9])
def test_what_is_neither_a_spec_nor_such_an_object_is_refused(other: object) -> None:
    with pytest.raises(RequestError, match="decoder must be a spec or a Decoder: got "):
        DECODERS.make(other)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("registry", "name", "message"),
    [
        (DECODERS, "treshold", r'no decoder named "treshold"; known: dc-leap, .*\. Did you mean "threshold"\?$'),
        (DECODERS, "Low-Confidence", r'Did you mean "low-confidence"\?$'),
        (
            SCHEDULES,
            "sequental(block_length=4)",
            r'no schedule named "sequental"; known: next-token, pipelined, sequential, sliding, whole\. Did',
        ),
        (CACHES, "xyz", r'no cache named "xyz"; known: delayed, dual, .*, window\.$'),
    ],
)
def test_an_unknown_name_gets_the_list_and_a_suggestion(registry: Registry[Any], name: str, message: str) -> None:
    with pytest.raises(UnknownNameError, match=message):
        registry.make(name)


@pytest.mark.parametrize(
    ("registry", "spec", "message"),
    [
        (
            DECODERS,
            "threshold(treshold=0.8)",
            r'has no field "treshold"; fields: compat, rank, steps, strict, threshold\. Did you mean "threshold"\?$',
        ),
        (DECODERS, "threshold(zzz=1)", r"fields: compat, rank, steps, strict, threshold\.$"),
        (SCHEDULES, "whole(block_length=4)", r'schedule "whole" has no field "block_length"; fields: none\.$'),
    ],
)
def test_an_unknown_field_gets_the_list_and_a_suggestion(registry: Registry[Any], spec: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        registry.make(spec)


@pytest.mark.parametrize(
    ("registry", "spec", "message"),
    [
        (DECODERS, "threshold(threshold='high')", "field \"threshold\" wants float: got 'high'"),
        (DECODERS, "threshold(threshold=True)", 'field "threshold" wants float: got True'),
        (DECODERS, "threshold(threshold=None)", 'field "threshold" wants float: got None'),
        (DECODERS, "threshold(threshold=[0.9])", r'field "threshold" wants float: got \[0\.9\]'),
        (DECODERS, "threshold(threshold=(0.9,))", r'field "threshold" wants float: got \(0\.9,\)'),
        (DECODERS, "threshold(threshold=1j)", 'field "threshold" wants float: got 1j'),
        (
            DECODERS,
            "low-confidence(steps='4')",
            r'decoder "low-confidence": field "steps" wants int \| None: got \'4\'',
        ),
        (DECODERS, "low-confidence(steps=4.0)", r'field "steps" wants int \| None: got 4\.0'),
        (DECODERS, "low-confidence(steps=False)", r'field "steps" wants int \| None: got False'),
        (DECODERS, "factor(compat='dream')", r"field \"compat\" wants Literal\['none', 'fast-dllm'\]: got 'dream'"),
        (DECODERS, "factor(compat=1)", r"field \"compat\" wants Literal\['none', 'fast-dllm'\]: got 1"),
        (SCHEDULES, "sequential(block_length=None)", 'field "block_length" wants int: got None'),
        (SCHEDULES, "sequential(block_length=8.5)", r'field "block_length" wants int: got 8\.5'),
        (CACHES, "dual(refresh='often')", r'cache "dual": field "refresh" wants int \| None: got \'often\''),
    ],
)
def test_a_value_of_the_wrong_type_is_refused(registry: Registry[Any], spec: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        registry.make(spec)


@pytest.mark.parametrize(
    ("registry", "spec", "message"),
    [
        (SCHEDULES, "sequential(block_length=0)", "block_length must be at least 1: got 0"),
        (CACHES, "prefix(refresh=-1)", "refresh must be at least 1"),
    ],
)
def test_a_value_that_the_class_refuses_is_a_request_error(registry: Registry[Any], spec: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        registry.make(spec)


@pytest.mark.parametrize(
    "spec",
    [
        "",
        "  ",
        "0.9",
        "threshold(",
        "threshold)",
        "threshold 0.9",
        "threshold(threshold=)",
        "threshold(threshold=high)",
        "threshold(threshold=0.9",
        "threshold(threshold=0.9))",
        "threshold(threshold=0.9) or f(",
        "threshold(threshold=0.9)(threshold=0.5)",
        "threshold(threshold=0.9, threshold=0.5)",
        "threshold(threshold=1+1)",
        "threshold(threshold=__import__('os'))",
        "threshold(threshold=\0)",
    ],
)
def test_a_malformed_spec_is_refused_with_an_example(spec: str) -> None:
    with pytest.raises(RequestError, match=r'cannot read the decoder spec "(.|\n)*"; write it like "[a-z-]+\(.*=.*\)"'):
        DECODERS.make(spec)


@pytest.mark.parametrize("spec", ["threshold(0.9)", "threshold(0.9, steps=3)", "threshold(*[0.9])", "threshold(**{})"])
def test_every_field_has_to_be_named(spec: str) -> None:
    with pytest.raises(
        RequestError, match=r'name every field, like "threshold\(threshold=0\.9, strict=False, .*steps=None\)"'
    ):
        DECODERS.make(spec)


# Writing -------------------------------------------------------------------------------------------------------------


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a field by its declared type."""
    if kind is float:
        return st.floats(0.0, 1.0)
    if kind is bool:
        return st.booleans()
    if kind is int:
        return st.integers(1, 1000)
    if kind is NoneType:
        return st.none()
    if kind is Decoder:
        return st.sampled_from([Threshold(0.7), Factor(), MaskgitPlus(3)])
    if isinstance(kind, UnionType):
        return st.one_of(*map(values_of, get_args(kind)))
    if get_origin(kind) is tuple:
        return st.tuples(*map(values_of, get_args(kind)))
    return st.sampled_from(get_args(kind))


PARTS = [(registry, name) for registry in REGISTRIES for name in registry]


@pytest.mark.parametrize(("registry", "name"), PARTS, ids=[name for _, name in PARTS])
@given(st.data())
@settings(max_examples=25, deadline=None)
def test_a_part_comes_back_from_its_spec(registry: Registry[Any], name: str, data: st.DataObject) -> None:
    options = {field.name: data.draw(values_of(field.type)) for field in fields(registry[name])}
    try:
        part = registry[name](**options)
    except ValueError:  # fields that do not go together
        assume(False)
    spec = spec_of(registry, part)
    assert registry.make(spec) == part
    assert spec.startswith(name)


def test_fields_that_are_as_usual_are_left_out() -> None:
    assert spec_of(DECODERS, Threshold()) == "threshold"
    assert spec_of(DECODERS, Threshold(0.8, compat="fast-dllm-dream")) == (
        "threshold(threshold=0.8, compat='fast-dllm-dream')"
    )
    assert spec_of(SCHEDULES, Whole()) == "whole"


def test_an_infinite_field_comes_back_from_its_spec() -> None:
    part = Threshold(float("inf"))
    assert DECODERS.make(spec_of(DECODERS, part)) == part


def test_a_part_without_a_name_is_described_by_its_class() -> None:
    assert spec_of(DECODERS, Sure(3)) == "Sure(count=3)"


def test_a_description_has_every_default_but_the_compat_switches() -> None:
    spec = "threshold(threshold=0.9, strict=False, rank='confidence', steps=None)"
    assert describe_fields("threshold", Threshold) == spec
    assert describe_fields("whole", Whole) == "whole"


def test_one_line_is_the_first_of_the_docstring() -> None:
    assert one_line(Sure) == "Commit what is sure."
    assert one_line(Bare) == ""


# The dictionary, and plug-ins ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sure(Decoder):
    """Commit what is sure.

    And a second paragraph.
    """

    count: int = 1
    weight: float = 0.5


class Bare(Decoder):
    __doc__ = None


@dataclass
class Stranger:
    count: int = 1


class Point:
    """An entry point as installed packages declare them."""

    dist = None

    def __init__(self, name: str, part: object) -> None:
        self.name, self.value, self.part = name, "strange_package:Part", part

    def load(self) -> object:
        return self.part


@pytest.fixture
def plugged(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Registry[Decoder]]:
    """A registry in a world where these plug-ins are installed."""

    def build(*points: Point) -> Registry[Decoder]:
        groups = {"unmask.decoders": points}
        monkeypatch.setattr("unmask.registry.entry_points", lambda group: groups.get(group, ()))
        return Registry("decoder", "unmask.decoders", {"threshold": Threshold, "factor": Factor}, Decoder)

    return build


def test_a_plug_in_that_breaks_on_import_is_named_with_a_way_out(plugged: Callable[..., Registry[Decoder]]) -> None:
    class Broken(Point):
        def load(self) -> object:
            raise ImportError("no module named missing")

    with pytest.raises(
        PluginError, match=r'plug-in decoder "odd" cannot be loaded: ImportError: no module .* Repair or'
    ):
        len(plugged(Broken("odd", None)))


def test_a_registry_is_a_dictionary_of_classes(plugged: Callable[..., Registry[Decoder]]) -> None:
    registry = plugged()
    assert dict(registry) == {"threshold": Threshold, "factor": Factor}
    assert len(registry) == 2 and "factor" in registry and "sure" not in registry
    with pytest.raises(UnknownNameError):
        registry["sure"]


def test_plug_ins_come_behind_our_own_and_are_made_like_them(plugged: Callable[..., Registry[Decoder]]) -> None:
    registry = plugged(Point("sure", Sure))
    assert list(registry) == ["threshold", "factor", "sure"]
    assert registry.make("sure(count=4)") == Sure(4)
    assert spec_of(registry, Sure(4)) == "sure(count=4)"


def test_a_whole_number_will_do_for_a_fraction(plugged: Callable[..., Registry[Decoder]]) -> None:
    assert plugged(Point("sure", Sure)).make("sure(weight=1)") == Sure(weight=1)


@pytest.mark.parametrize("part", [Bare, Stranger, Sure(), "Sure", Sequential])
def test_a_plug_in_must_be_a_dataclass_of_the_right_kind(
    plugged: Callable[..., Registry[Decoder]], part: object
) -> None:
    with pytest.raises(
        PluginError, match=r'plug-in decoder "odd" must be a dataclass derived from Decoder: got .* from str'
    ):
        list(plugged(Point("odd", part)))


def test_a_plug_in_cannot_hide_a_part_of_ours(plugged: Callable[..., Registry[Decoder]]) -> None:
    with pytest.raises(
        PluginError, match=r'plug-in decoder "threshold" \(strange_package:Part\) would hide the built-in'
    ):
        plugged(Point("threshold", Sure)).make("factor")
