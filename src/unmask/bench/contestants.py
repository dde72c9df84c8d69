"""The methods of a benchmark: how they are written, the two that always run, and the named grids."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, Literal

from unmask.caches import CACHES, CachePolicy
from unmask.core.sampling import Sampling
from unmask.core.schedules import SCHEDULES, Schedule
from unmask.decoders import DECODERS, Decoder
from unmask.errors import RequestError, UnknownNameError
from unmask.generation import Recipe
from unmask.models.facts import ModelFacts
from unmask.presets import preset

Baseline = Literal["", "A", "B"]
METHODS = (  # every method at its default, on the window that its paper gives it
    "dc-leap @ sliding(length=None)",
    "leap",
    "wino",
    "factor",
    "entropy-bound",
    "entropy-threshold",
    "local-leap",
    "klass",
    "prophet(low-confidence)",
    "lopa(threshold)",
)
CACHED = (  # every cache under the default method, and the pairs that papers recommend
    *(f"threshold @ {cache}" for cache in ("prefix", "dual", "delayed", "window", "features")),
    "dc-leap @ sliding(length=None) @ window",
    "dc-leap @ sliding(length=None) @ features",
    "leap @ dual",
    "wino @ dual",
)
SWEEP = (  # settings to choose from, mildest first
    *(f"threshold(threshold={bound})" for bound in (0.97, 0.95)),
    *(f"dc-leap(commit={bound}) @ sliding(length=None)" for bound in (0.95, 0.9, 0.8)),
    *(f"wino(draft={draft}, verify={verify})" for draft, verify in ((0.9, 0.97), (0.7, 0.9))),
    *(f"leap(accept={high}, early={low})" for high, low in ((0.97, 0.9), (0.95, 0.85), (0.9, 0.8))),
    "factor(factor=0.25)",
    "entropy-bound(gamma=0.05)",
    "entropy-threshold(threshold=0.1)",
    *(f"local-leap(anchor={high}, relaxed={low})" for high, low in ((0.97, 0.9), (0.95, 0.85))),
    "klass(confidence=0.9)",
    "lopa(threshold(threshold=0.97), width=2)",
)
CHOSEN = (  # what the papers' methods do by default, and what a sweep on the built-in model came to
    "dc-leap @ sliding(length=None)",
    "leap",
    "wino",
    "threshold(threshold=0.97)",
    "dc-leap(commit=0.95) @ sliding(length=None)",
    "leap(accept=0.95, early=0.85)",
    "wino(draft=0.9, verify=0.97)",
    "entropy-bound(gamma=0.05)",
    "entropy-threshold(threshold=0.1)",
    "local-leap(anchor=0.97, relaxed=0.9)",
)
GRIDS = ("table", "methods", "caches", "sweep", "chosen")


@dataclass(frozen=True, slots=True)
class Contestant:
    """One method of a benchmark."""

    name: str  # what tables call it
    decoder: str | Decoder
    schedule: str | Schedule | None = None  # None = see `Recipe.of`
    cache: str | CachePolicy = "none"
    temperature: float = 0.0  # 0 = greedy
    stop: Literal["tail", "block", "none"] = "tail"
    baseline: Baseline = ""
    model: str | None = None  # name of one of its own; None = that of the benchmark

    def recipe(self, facts: ModelFacts) -> Recipe:
        """The parts, checked against each other and the model.

        Raises:
            UnknownNameError, RequestError, CompositionError: see `Recipe.of`.
        """
        sampling = Sampling(temperature=self.temperature)
        return Recipe.of(self.decoder, self.schedule, self.cache, sampling=sampling, stop=self.stop, facts=facts)


BASELINES = (
    Contestant("1 token/step", "low-confidence", baseline="A"),
    Contestant("threshold 0.9", "threshold(threshold=0.9)", baseline="B"),
)


def parse(text: str, schedule: str | None = None, cache: str | None = None) -> Contestant:
    """Read "DECODER", "DECODER @ SCHEDULE", "DECODER @ CACHE" or "DECODER @ SCHEDULE @ CACHE".

    With "@ builtin:NAME" the method runs on that variant of the built-in model.

    Args:
        text: specs joined by "@"; a part behind the decoder is known by its name to be a schedule, a cache or a model.
        schedule, cache: for a method that names none.

    Raises:
        UnknownNameError: an unknown decoder, or a part that is neither schedule nor cache.
        RequestError: no decoder, two schedules, two caches, or a spec that cannot be read.
    """
    decoder, *others = (part.strip() for part in text.split("@"))
    if not decoder:
        raise RequestError(f'"{text}" names no decoder; write it like "threshold(threshold=0.7) @ dual"')
    chosen: dict[str, str] = {}
    for part in others:
        kind = _kind(part)
        if kind in chosen:
            raise RequestError(f'"{text}" has two {kind}s, "{chosen[kind]}" and "{part}"; give one')
        chosen[kind] = part
    found = _composed(decoder, decoder, chosen.get("schedule", schedule), chosen.get("cache", cache))
    return replace(found, model=chosen.get("model"))


def of_preset(spec: str) -> Contestant:
    """A method under its paper's name, "d2f" or "wino:llada/gsm8k"; its length is that of the benchmark.

    Raises:
        UnknownNameError: no such preset or setting.
    """
    parts = preset(spec)
    assert parts.decoder is not None, "every preset names its decoder"
    return replace(_composed(spec, parts.decoder, parts.schedule, parts.cache), name=f"{spec} (preset)")


def _kind(part: str) -> str:
    name = part.partition("(")[0].strip()
    if name in SCHEDULES:
        return "schedule"
    if name in CACHES:
        return "cache"
    if name.partition(":")[0] == "builtin":
        return "model"
    raise UnknownNameError("schedule or cache", name, [*SCHEDULES, *CACHES])


def _composed(name: str, decoder: str, schedule: str | None, cache: str | None) -> Contestant:
    DECODERS.make(decoder)  # a spec that cannot be read is refused before a model is loaded
    if schedule is not None:
        SCHEDULES.make(schedule)
    CACHES.make(cache or "none")
    label = " @ ".join([name, *(part for part in (schedule, cache) if part)])
    return Contestant(label, decoder, schedule, cache or "none")


def grid(name: str, length: int, schedule: str | None = None, cache: str | None = None) -> list[Contestant]:
    """A named set of methods.

    "table" is the one of the built-in model's card: 1, 2, 4 and 8 tokens per step, and thresholds 0.9, 0.7 and 0.5. N
    tokens per step is `low-confidence(steps=length / N)`, rounded up: a plan for all slots of the canvas, of which an
    answer that ends early needs only a part. "methods" has every method at its default, "caches" every cache, "sweep"
    settings of each method to choose from, "chosen" the papers' methods at their defaults and at settings from a sweep.

    Args:
        length: answer slots, tokens.
        schedule, cache: for every method of the grid.
    """
    if name not in GRIDS:
        raise UnknownNameError("grid", name, GRIDS)
    listed = {"methods": METHODS, "caches": CACHED, "sweep": SWEEP, "chosen": CHOSEN}
    if name in listed:
        return [parse(text, schedule, cache) for text in listed[name]]
    methods = [("1 token/step", "low-confidence")]
    methods += [(f"{count} tokens/step", f"low-confidence(steps={ceil(length / count)})") for count in (2, 4, 8)]
    methods += [(f"threshold {bound}", f"threshold(threshold={bound})") for bound in (0.9, 0.7, 0.5)]
    return [_composed(label, decoder, schedule, cache) for label, decoder in methods]


def line_up(
    contestants: Iterable[Contestant], facts: ModelFacts, others: Mapping[str, ModelFacts] | None = None
) -> list[tuple[Contestant, Recipe]]:
    """The baselines first, then the others in their order; a method that equals an earlier one is dropped.

    Args:
        facts: those of the benchmark's model.
        others: those of every model that a contestant names.

    Raises:
        RequestError: two different methods of one name.
        UnknownNameError, RequestError, CompositionError: a method that cannot run.
    """
    methods: list[tuple[Contestant, Recipe]] = []
    seen: list[tuple[str | None, dict[str, Any]]] = []
    for contestant in (*BASELINES, *(replace(one, baseline="") for one in contestants)):
        recipe = contestant.recipe(facts if contestant.model is None else (others or {})[contestant.model])
        if (contestant.model, recipe.specs()) in seen:
            continue
        if any((contestant.model, contestant.name) == (other.model, other.name) for other, _ in methods):
            raise RequestError(f'two different methods are named "{contestant.name}"; give each its own name')
        seen.append((contestant.model, recipe.specs()))
        methods.append((contestant, recipe))
    return methods
