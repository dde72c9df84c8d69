"""`unmask generate` on the reference checkpoint."""

import json
from pathlib import Path
from typing import Any

import pytest
from commands import CHECKPOINT, invoke, refused

import unmask
from unmask.core.trajectory import Trajectory
from unmask.errors import CompositionError, StalledDecoding


@pytest.fixture
def generate(llada: unmask.Model, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`unmask generate` on the reference checkpoint, which is loaded once."""
    real = unmask.load

    def load(name: str, **options: Any) -> unmask.Model:
        return llada if set(options.values()) == {"auto", None} else real(name, **options)

    monkeypatch.setattr("unmask.loading.load", load)
    return lambda *arguments, **options: invoke("generate", *arguments, "--model", CHECKPOINT, **options)


def test_text_goes_to_stdout_and_its_cost_to_stderr(generate: Any, llada: unmask.Model) -> None:
    [expected] = unmask.generate(llada, ["sort the list"], length=32)
    result = generate("sort the list", "--length", 32)
    assert result.exit_code == 0, result.output
    assert result.stdout == expected.text + "\n"
    [line] = result.stderr.splitlines()
    assert f"NFE {expected.nfe}, TPF {expected.tpf:.2f}, {expected.rows_computed:,} rows" in line
    assert f"finish: {expected.finish_reason}" in line


def test_json_says_what_the_api_says(generate: Any, llada: unmask.Model) -> None:
    options = {"decoder": "factor(factor=0.5)", "cache": "dual", "temperature": 0.7, "seed": 3}
    [expected] = unmask.generate(llada, ["max of a"], length=24, guidance=0.5, stop="none", **options)  # type: ignore[arg-type]
    flags = [part for name, value in options.items() for part in (f"--{name}", value)]
    result = generate("max of a", "--length", 24, "--guidance", 0.5, "--stop", "none", "--json", *flags)
    assert result.exit_code == 0 and result.stderr == ""
    found = json.loads(result.stdout)
    for name in ("text", "tokens", "nfe", "tpf", "rows_computed", "finish_reason"):
        assert found[name] == getattr(expected, name), name
    assert found["seconds"] > 0.0 and found["num_tokens"] == len(expected.tokens)
    assert {name: found[name] for name in options} == options
    assert (found["stop"], found["length"], found["guidance"], found["schedule"]) == ("none", 24, 0.5, "sequential")
    assert result.stdout.count("\n") == 1


@pytest.mark.parametrize("watch", [(), ("--watch",)])
def test_drift_is_measured_on_request(generate: Any, llada: unmask.Model, watch: tuple[str]) -> None:
    options: dict[str, Any] = {"cache": "dual", "length": 16}
    flags = ["sort the list", "--cache", "dual", "--length", 16]
    [expected] = unmask.generate(llada, ["sort the list"], **options, drift=True)
    assert expected.drift
    assert json.loads(generate(*flags, "--drift", "--json", *watch).stdout)["drift"] == expected.drift
    assert f"tokens/s, drift {100 * expected.drift:.1f} %, finish" in generate(*flags, "--drift", *watch).stderr
    assert json.loads(generate(*flags, "--json", *watch).stdout)["drift"] is None
    assert "drift" not in generate(*flags, *watch).stderr


def test_sampling_options_reach_the_draw(generate: Any) -> None:
    def text(*flags: object) -> str:
        return str(json.loads(generate("hello", "--length", 16, "--json", "--temperature", 2, *flags).stdout)["text"])

    assert text("--seed", 1) == text("--seed", 1) != text("--seed", 2)
    assert text("--top-k", 1, "--seed", 1) == text("--top-k", 1, "--seed", 2) == text("--top-p", 1e-9)


def test_hold_end_reaches_the_rule(generate: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    real = unmask.core.stopping.Stopping.held  # type: ignore[attr-defined]

    def held(self: Any, *arguments: Any) -> Any:
        seen.append(self.mode)
        return real(self, *arguments)

    monkeypatch.setattr("unmask.core.stopping.Stopping.held", held)
    assert generate("hello", "--length", 8, "--hold-end", "--stop", "block").exit_code == 0
    assert seen and set(seen) == {"block"}


def test_a_dash_reads_stdin(generate: Any) -> None:
    piped = generate("-", "--length", 16, "--json", stdin="sort the list\n")
    typed = generate("sort the list", "--length", 16, "--json")
    assert json.loads(piped.stdout)["tokens"] == json.loads(typed.stdout)["tokens"]


def test_watching_without_a_terminal_gives_a_line_per_step(generate: Any) -> None:
    result = generate("sort the list", "--length", 16, "--json", "--watch")
    found = json.loads(result.stdout)
    lines = result.stderr.splitlines()
    assert len(lines) == found["nfe"] + 1
    assert "[16 masked]" in lines[0] and lines[-1].split()[:2] == ["step", str(found["nfe"])]
    plain = generate("sort the list", "--length", 16, "--watch")
    assert plain.stdout == found["text"] + "\n"


@pytest.mark.parametrize("watch", [(), ("--watch",)])
def test_a_trace_replays_to_the_answer(generate: Any, tmp_path: Path, llada: unmask.Model, watch: tuple[str]) -> None:
    file = tmp_path / "run.trace"
    file.write_text("an older file", encoding="utf-8")
    found = json.loads(generate("sort the list", "--length", 24, "--json", "--trace", file, *watch).stdout)
    record = Trajectory.load(file)
    final = record.final()
    answer = final.tokens[0][final.answer[0]].tolist()
    assert answer[: found["num_tokens"]] == found["tokens"]
    assert llada.text.decode(found["tokens"]) == found["text"]
    assert (record.nfe(0), record.rows_computed(0)) == (found["nfe"], found["rows_computed"])
    assert record.facts["decoder"].startswith("threshold") and record.facts["seed"] == "0"
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.trace"]


def test_a_place_for_the_trace_is_checked_before_anything_is_loaded(
    generate: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unmask.loading.load", lambda *_, **__: pytest.fail("loaded"))
    refused(generate("a", "--trace", tmp_path), "it is a folder")
    refused(generate("a", "--trace", tmp_path / "no" / "file"), "No such file or directory")
    refused(generate("a", "--trace", "/dev/null"), "no regular file")
    refused(generate("a", "--trace", tmp_path / ("x" * 300)), "too long")


def test_an_answer_is_printed_even_if_its_trace_cannot_be_saved(
    generate: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors import SafetensorError

    def full(*_: object) -> None:
        raise SafetensorError("No space left on device")

    monkeypatch.setattr(Trajectory, "save", full)
    result = generate("sort the list", "--length", 8, "--json", "--trace", tmp_path / "file")
    assert result.exit_code == 2 and json.loads(result.stdout)["text"]
    assert "No space left" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["a", "--decoder", "treshold"], ['no decoder named "treshold"', 'Did you mean "threshold"?']),
        (["a", "--decoder", "threshold(tau=1)"], ['no field "tau"']),
        (["a", "--decoder", "threshold("], ["cannot read the decoder spec"]),
        (["a", "--decoder", "threshold(threshold='x')"], ["wants float"]),
        (["a", "--cache", "duel"], ['Did you mean "dual"?']),
        (["a", "--schedule", "hole"], ['Did you mean "whole"?']),
        (["a", "--schedule", "sequential(block_length=0)"], ["block_length must be at least 1"]),
        (["a", "--length", "0"], ["length must be", "got 0"]),
        (["a", "--length", "-3"], ["length must be", "got -3"]),
        (["a", "--length", "1000000"], ["length must be", "got 1000000"]),
        (["a", "--length", "ten"], ["--length"]),
        (["a", "--temperature", "-1"], ["temperature"]),
        (["a", "--top-p", "0"], ["top_p"]),
        (["a", "--top-k", "-1"], ["top_k"]),
        (["a", "--guidance", "-2"], ["guidance"]),
        (["a", "--seed", "-1"], ["seed"]),
        (["a", "--seed", str(2**70)], ["seed"]),
        (["a", "--stop", "never"], ["--stop", "tail"]),
        (["a", "--dtype", "int3"], ['no dtype "int3"']),
        (["a", "--device", "abacus"], ['no device "abacus"']),
        (["a", "--device", "meta"], ['device "meta" is not supported']),
        (["a", "--colour"], ["--colour"]),
        ([""], ["the prompt is empty"]),
        ([" \n "], ["the prompt is empty"]),
        (["a " * 600], ["prompt 0 has", "contexts of 512"]),
        (["a\udc80b"], ["not valid Unicode"]),
    ],
)
def test_bad_input_is_one_line(generate: Any, arguments: list[str], words: list[str]) -> None:
    refused(generate(*arguments), *words)


def test_an_empty_or_broken_stdin_is_refused(generate: Any) -> None:
    refused(generate("-", stdin=""), "the prompt is empty")
    refused(generate("-", stdin=b"\xff\xfe"), "not UTF-8")


def test_unreadable_checkpoints_are_one_line(tmp_path: Path) -> None:
    refused(invoke("generate", "a", "--model", tmp_path / "none"), "no checkpoint")
    refused(invoke("generate", "a", "--model", tmp_path), "config.json")
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    refused(invoke("generate", "a", "--model", tmp_path), "cannot be read as JSON")
    (tmp_path / "config.json").write_text('{"model_type": "\\n\\nodd"}', encoding="utf-8")
    refused(invoke("generate", "a", "--model", tmp_path), "no adapter")


@pytest.mark.parametrize("error", [CompositionError("x cannot run with y:\n use z"), StalledDecoding("stuck")])
def test_errors_of_the_engine_are_one_line(generate: Any, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("unmask.cli.watch.decode", fail)
    refused(generate("a"), "x cannot run with y: use z" if isinstance(error, CompositionError) else "stuck")


def test_ctrl_c_is_130_and_silent(generate: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("unmask.cli.watch.decode", interrupt)
    result = generate("a")
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "")


def test_a_bug_keeps_its_traceback(generate: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("unmask.cli.watch.decode", broken)
    assert isinstance(generate("a").exception, ZeroDivisionError)


def test_a_model_can_be_read_as_a_block_causal_one() -> None:
    """The pattern reaches the model: a preset that needs it runs without the warning about approximate values."""
    options = ["--model", CHECKPOINT, "--preset", "d2f", "--length", "32", "--json"]
    told = json.loads(invoke("generate", "we sort: 3 1 2", *options, "--attention", "block_causal").stdout)
    assert told["cache"] == "finished-blocks" and told["schedule"].startswith("pipelined")
    refused(invoke("generate", "a", *options, "--attention", "causal"), 'schedule="next-token"')
    refused(invoke("generate", "a", *options, "--attention", "blocky"), "block_causal")
