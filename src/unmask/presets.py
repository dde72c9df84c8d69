"""Methods under the names of their papers: which parts they are made of, and what their authors set for each task.

A preset fills in what a request leaves open: `generate(model, prompts, preset="wino:llada/gsm8k")`. Anything said
beside it wins. Figures that papers print for these settings are theirs, with their prompts and graders; measure yours.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from unmask.errors import UnknownNameError


@dataclass(frozen=True, slots=True)
class Setting:
    """Parts of a run, as specs; None = leave it as it is."""

    decoder: str | None = None
    schedule: str | None = None
    cache: str | None = None
    length: int | None = None  # answer slots, tokens


@dataclass(frozen=True, slots=True)
class Preset:
    """A method of the field and its published settings."""

    summary: str
    parts: Setting
    source: str
    settings: Mapping[str, Setting] = field(default_factory=dict)  # "family/task" -> what differs there

    def setting(self, name: str, which: str = "") -> Setting:
        """The parts for a task, or the method's own defaults.

        Raises:
            UnknownNameError: no setting of that name was published.
        """
        if not which:
            return self.parts
        if which not in self.settings:
            raise UnknownNameError(f'setting of "{name}"', which, self.settings or ["none"])
        chosen = self.settings[which]
        return Setting(*(getattr(chosen, part) or getattr(self.parts, part) for part in Setting.__dataclass_fields__))


def preset(spec: str) -> Setting:
    """The parts behind "NAME" or "NAME:FAMILY/TASK".

    Raises:
        UnknownNameError: no such preset, or no such setting.
    """
    name, _, which = (part.strip() for part in spec.partition(":"))
    if name not in PRESETS:
        raise UnknownNameError("preset", name, PRESETS)
    return PRESETS[name].setting(name, which)


def _dc_leap(commit: float = 0.7, length: int = 256, window: int = 128) -> Setting:
    return Setting(f"dc-leap(commit={commit}, draft=0.98)", f"sliding(length={window})", length=length)


def _wino(draft: float) -> Setting:
    return Setting(f"wino(draft={draft}, verify=0.9)", length=256)


def _wino_plus(threshold: float) -> Setting:
    return Setting(f"threshold(threshold={threshold})", length=256)


def _d2f(length: int, block: int, add: float, threshold: float = 0.9) -> Setting:
    schedule = f"pipelined(block_length={block}, add={add}, force=0.95)"
    return Setting(f"threshold(threshold={threshold}, strict=True)", schedule, length=length)


def _klass(confidence: float, divergence: float, schedule: str | None = None) -> Setting:
    return Setting(f"klass(confidence={confidence}, divergence={divergence})", schedule, length=256)


def _lopa(block: int, add: float, force: float) -> Setting:
    return Setting(schedule=f"pipelined(block_length={block}, add={add}, force={force})", length=512)


def _dllm_cache(prompt: int, answer: int) -> Setting:
    return Setting(cache=f"features(prompt_every={prompt}, answer_every={answer})")


PRESETS: dict[str, Preset] = {
    "llada": Preset(
        "LLaDA's sampler: the surest token of a block, one per step",
        Setting("low-confidence", "sequential(block_length=32)", length=256),
        "Nie et al., LLaDA (arXiv 2502.09992)",
    ),
    "dream": Preset(
        "Dream's sampler: the slot of lowest entropy of the whole answer, one per step",
        Setting("entropy", "whole", length=256),
        "Ye et al., Dream 7B (arXiv 2508.15487)",
    ),
    "fast-dllm-parallel": Preset(
        "Fast-dLLM's threshold rule without a cache",
        Setting("threshold(threshold=0.9)", "sequential(block_length=32)", length=256),
        "Wu et al., Fast-dLLM (arXiv 2505.22618)",
    ),
    "fast-dllm": Preset(
        "Fast-dLLM's threshold rule with its prefix cache",
        Setting("threshold(threshold=0.9)", "sequential(block_length=32)", "prefix", length=256),
        "Wu et al., Fast-dLLM (arXiv 2505.22618)",
    ),
    "fast-dllm-dual": Preset(
        "Fast-dLLM's threshold rule with its dual cache",
        Setting("threshold(threshold=0.9)", "sequential(block_length=32)", "dual", length=256),
        "Wu et al., Fast-dLLM (arXiv 2505.22618)",
    ),
    "fast-dllm-factor": Preset(
        "Fast-dLLM's factor rule with its dual cache",
        Setting("factor(factor=1.0)", "sequential(block_length=32)", "dual", length=256),
        "Wu et al., Fast-dLLM (arXiv 2505.22618)",
    ),
    "dc-leap": Preset(
        "contiguous verification with drafts on a sliding window",
        _dc_leap(),
        "DC-Leap; the window of 128 is what its LLaDA runs used at every length",
        {
            "llada/gsm8k": _dc_leap(),
            "llada/math": _dc_leap(),
            "llada/mbpp": _dc_leap(),
            "llada/humaneval": _dc_leap(length=512),
            "llada/ifeval": _dc_leap(length=512),
            "dream/gsm8k": _dc_leap(),
            "dream/math": _dc_leap(),
            "dream/mbpp": _dc_leap(),
            "dream/humaneval": _dc_leap(length=512, window=256),
            "dream/ifeval": _dc_leap(length=512, window=256),
        },
    ),
    "dc-leap+dparallel": Preset(
        "DC-Leap on a checkpoint trained with dParallel",
        _dc_leap(0.75),
        "DC-Leap, on dParallel's LLaDA checkpoint",
    ),
    "dc-leap+dllm-cache": Preset(
        "DC-Leap with dLLM-Cache; the authors give no refresh periods, these are dLLM-Cache's for GSM8K",
        Setting(
            "dc-leap(commit=0.7, draft=0.98)",
            "sliding(length=128)",
            "features(prompt_every=50, answer_every=7)",
            256,
        ),
        "DC-Leap, table 5, and Liu et al., dLLM-Cache (arXiv 2506.06295)",
    ),
    "leap": Preset(
        "threshold decoding that also commits what likely future tokens do not change",
        Setting("leap(accept=0.9, early=0.7, candidate=0.2)", "sequential(block_length=32)", length=256),
        "LEAP; see docs/compat.md for the rules that are ours",
        {"gsm8k": Setting(), "math": Setting(), "gpqa": Setting(), "humaneval": Setting(length=512)}
        | {"mbpp": Setting(length=512)},
    ),
    "leap+dparallel": Preset(
        "LEAP over dParallel's entropy rule, for a checkpoint trained with dParallel",
        Setting(
            "leap(early=0.7, candidate=0.2, inner=entropy-threshold(threshold=0.5))",
            "sequential(block_length=32)",
            length=256,
        ),
        "LEAP, on dParallel's LLaDA checkpoint",
    ),
    "wino": Preset(
        "draft wide, verify with shadow slots, take back what fails",
        Setting("wino(draft=0.6, verify=0.9)", "sequential(block_length=128)", length=256),
        "Hong et al., WINO (arXiv 2507.18578)",
        {
            "llada/gsm8k": _wino(0.6),
            "llada/math": _wino(0.7),
            "llada/humaneval": _wino(0.7),
            "llada/mbpp": _wino(0.8),
            "llada/countdown": _wino(0.5),
            "llada/sudoku": _wino(0.7),
            "llada/arc": _wino(0.5),
            "mmada": _wino(0.5),
        },
    ),
    "wino-plus": Preset(
        "threshold decoding of a model trained on WINO's verified order",
        Setting("threshold(threshold=0.65)", "sequential(block_length=128)", length=256),
        "WINO+, the release that goes with arXiv 2507.18578",
        {
            "llada/gsm8k": _wino_plus(0.65),
            "llada/math": _wino_plus(0.8),
            "llada/humaneval": _wino_plus(0.9),
            "llada/mbpp": _wino_plus(0.9),
            "llada/countdown": _wino_plus(0.6),
            "llada/sudoku": _wino_plus(0.6),
            "llada/arc": _wino_plus(0.5),
        },
    ),
    "d2f": Preset(
        "several blocks of a block-causal model at once, with an exact cache",
        Setting(
            "threshold(threshold=0.9, strict=True)",
            "pipelined(block_length=32, add=0.1, force=0.95)",
            "finished-blocks",
            length=512,
        ),
        "Wang et al., Discrete Diffusion Forcing (arXiv 2508.09192), table 8",
        {
            "llada/gsm8k": _d2f(512, 64, 0.7),
            "llada/mbpp": _d2f(512, 32, 0.9),
            "llada/humaneval": _d2f(512, 32, 0.1),
            "llada/math": _d2f(512, 32, 0.1),
            "dream/gsm8k": _d2f(256, 32, 0.1),
            "dream/mbpp": _d2f(256, 48, 0.1),
            "dream/humaneval": _d2f(256, 32, 0.9, 0.95),
            "dream/math": _d2f(256, 64, 0.1),
        },
    ),
    "block-diffusion": Preset(
        "one block of a block-causal model after another (SDAR, LLaDA2), with an exact cache",
        Setting(
            "dynamic(threshold=0.85)",
            "pipelined(block_length=4, add=1.0, force=1.0, align='absolute')",
            "finished-blocks",
            length=256,
        ),
        "Cheng et al., SDAR (arXiv 2510.06303); LLaDA2.0",
        {
            "llada2": Setting(
                "dynamic(threshold=0.95)", "pipelined(block_length=32, add=1.0, force=1.0, align='absolute')"
            ),
            "llada2.1": Setting(
                "edit(dynamic(threshold=0.95), threshold=0.9)",
                "sequential(block_length=32, align='absolute', polish=True)",
            ),
        },
    ),
    "dparallel": Preset(
        "entropy threshold, for a checkpoint trained to be sure early",
        Setting("entropy-threshold(threshold=0.5)", "sequential(block_length=32)", length=256),
        "Chen et al., dParallel (arXiv 2509.26488)",
        {
            "llada/mbpp": Setting("entropy-threshold(threshold=0.45)"),
            "dream": Setting("entropy-threshold(threshold=0.45)"),
        },
    ),
    "autoregressive": Preset(
        "one token after the other, from left to right, with an exact cache: what a causal model does",
        Setting("every-slot", "next-token", "finished-blocks", length=256),
        "the twin of a diffusion model that its speed is measured against",
    ),
    "eb-sampler": Preset(
        "as many slots as a bound on their joint entropy allows",
        Setting("entropy-bound(gamma=0.1)", "sequential(block_length=32)", length=256),
        "Ben-Hamu et al., EB-Sampler (arXiv 2505.24857)",
    ),
    "klass": Preset(
        "commit what is sure and has not moved for two steps",
        Setting("klass(confidence=0.6, divergence=0.015)", "sequential(block_length=64)", length=256),
        "Kim et al., KLASS: KL-guided fast inference in masked diffusion models",
        {
            "llada/gsm8k": _klass(0.6, 0.015),
            "llada/math": _klass(0.6, 0.01),
            "llada/mbpp": _klass(0.7, 0.01),
            "llada/humaneval": _klass(0.9, 0.01),
            "dream/gsm8k": _klass(0.9, 0.001, "whole"),
            "dream/math": _klass(0.9, 0.005, "whole"),
            "dream/humaneval": _klass(0.8, 0.001, "whole"),
            "dream/mbpp": _klass(0.9, 0.001, "whole"),
        },
    ),
    "prophet": Preset(
        "one token per step until the answer is sure, then everything",
        Setting("prophet(inner=low-confidence)", "sequential(block_length=32)", length=256),
        "Li et al., Prophet (arXiv 2508.19982)",
    ),
    "local-leap": Preset(
        "threshold decoding that asks less near very sure slots",
        Setting("local-leap(anchor=0.9, relaxed=0.75, radius=4)", "sequential(block_length=32)", length=256),
        "LocalLeap: local determinism propagation",
    ),
    "lopa": Preset(
        "D2F that looks one token ahead in several candidate canvases",
        Setting(
            "lopa(inner=threshold(threshold=0.9, strict=True, rank='entropy'), width=3)",
            "pipelined(block_length=32, add=0.1, force=0.95)",
            "finished-blocks",
            length=512,
        ),
        "LoPA: lookahead parallel decoding",
        {
            "dream/gsm8k": _lopa(32, 0.1, 0.95),
            "dream/mbpp": _lopa(32, 0.3, 0.95),
            "dream/math": _lopa(16, 0.1, 0.9),
            "dream/humaneval": _lopa(32, 0.3, 0.95),
        },
    ),
    "dkv-cache": Preset(
        "one token per step with delayed key-value caching",
        Setting("low-confidence", "sequential(block_length=64)", "delayed(every=8)", length=128),
        "Ma et al., dKV-Cache (arXiv 2505.15781)",
    ),
    "dllm-cache": Preset(
        "one token per step with cached features, refreshed in intervals and where values moved",
        Setting(
            "low-confidence", "sequential(block_length=8)", "features(prompt_every=50, answer_every=7)", length=256
        ),
        "Liu et al., dLLM-Cache (arXiv 2506.06295)",
        {
            "llada/gsm8k": _dllm_cache(50, 7),
            "llada/math": _dllm_cache(50, 1),
            "llada/humaneval": _dllm_cache(25, 5),
            "llada/mbpp": _dllm_cache(100, 5),
            "llada/gpqa": _dllm_cache(50, 6),
            "llada-base/gsm8k": _dllm_cache(25, 5),
            "llada-base/mbpp": _dllm_cache(25, 4),
            "llada-base/humaneval": _dllm_cache(50, 5),
            "llada-base/math": _dllm_cache(50, 8),
            "dream/gsm8k": _dllm_cache(25, 2),
            "dream/mbpp": _dllm_cache(10, 8),
            "dream/math": _dllm_cache(50, 1),
            "dream/humaneval": _dllm_cache(50, 1),
            "dream-base/gsm8k": _dllm_cache(100, 8),
            "dream-base/mbpp": _dllm_cache(25, 8),
            "dream-base/humaneval": _dllm_cache(5, 1),
            "dream-base/math": _dllm_cache(100, 4),
        },
    ),
}
