"""`unmask show` on records of the reference checkpoint, and in a real terminal."""

import os
import select
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from commands import CHECKPOINT, invoke, refused
from safetensors.torch import load_file, save_file
from typer.testing import Result

import unmask
from unmask.core.trajectory import Trajectory
from unmask.generation import Recipe, run, start_state
from unmask.show.words import with_words


@pytest.fixture(scope="module")
def record(llada: unmask.Model) -> Trajectory:
    """Two rows, with everything that can be kept."""
    state = start_state(llada, ["sort it", "a longer prompt"], [24, 30])
    recipe = Recipe.of("threshold(threshold=0.6)", "sequential(block_length=8)")
    facts = {"model": CHECKPOINT, **recipe.specs()}
    return with_words(Trajectory.collect(state, run(llada, state, recipe), facts, views=True), llada.text)


@pytest.fixture
def trace(record: Trajectory, tmp_path: Path) -> Path:
    record.save(tmp_path / "run.trace")
    return tmp_path / "run.trace"


def shown(*arguments: object) -> Result:
    result = invoke("show", *arguments)
    assert result.exit_code == 0, (result.output, result.exception)
    return result


def test_without_a_terminal_the_answer_and_a_summary_are_printed(
    trace: Path, record: Trajectory, llada: unmask.Model
) -> None:
    text = shown(trace, "--width", 200).stdout
    final = record.final()
    for line in llada.text.decode(final.tokens[0][final.answer[0]].tolist()).splitlines():
        assert line.strip() in text
    assert f"NFE {record.nfe(0)}" in text and "committed per step:" in text
    assert "row 0 of 0 to 1" in text and "\x1b" not in text


def test_a_step_and_a_row_can_be_chosen(trace: Path, record: Trajectory) -> None:
    first = shown(trace, "--row", 1, "--step", 0).stdout
    assert "NFE 0" in first and "0/30 slots" in first and "row 1 of 0 to 1" in first
    later = shown(trace, "--row", 1, "--step", 2).stdout
    assert "NFE 2" in later and later != first
    refused(invoke("show", trace, "--row", 2), "no row 2", "rows 0 to 1")
    refused(invoke("show", trace, "--step", 999), f"step must be from 0 to {record.nfe(0)}", "999")
    refused(invoke("show", trace, "--step", -1), "step must be from 0")


def test_two_records_are_printed_one_after_the_other(trace: Path, tmp_path: Path, record: Trajectory) -> None:
    record.of_row(1).save(tmp_path / "other.trace")
    text = shown(trace, tmp_path / "other.trace").stdout
    assert text.index("run.trace") < text.index("other.trace")
    refused(invoke("show", trace, trace, trace), "at most two", "3")


@pytest.mark.parametrize("width", [20, 60, 200])
def test_the_width_is_kept(trace: Path, width: int) -> None:
    panel = [
        line
        for line in shown(trace, "--width", width).stdout.splitlines()
        if line[:1] in ("\u256d", "\u2502", "+", "|")
    ]
    assert {len(line) for line in panel} == {width}


def test_impossible_widths_are_refused(trace: Path) -> None:
    for width in (0, 19, 1001):
        refused(invoke("show", trace, "--width", width), "width must be from 20 to 1000", str(width))


def test_a_page_is_written_and_its_size_said(trace: Path, tmp_path: Path) -> None:
    file = tmp_path / "run.html"
    result = shown(trace, trace, "--html", file)
    assert result.stdout == "" and "kB" in result.stderr
    assert file.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert file.stat().st_size < 60_000


def test_a_place_for_the_page_is_checked_before_anything_is_read(trace: Path, tmp_path: Path) -> None:
    refused(invoke("show", tmp_path / "nothing", "--html", tmp_path), "it is a folder")


def test_a_missing_file_or_another_kind_of_file_is_one_line(tmp_path: Path) -> None:
    refused(invoke("show", tmp_path / "nothing"), "no trajectory at")
    refused(invoke("show", tmp_path), "no trajectory at")
    (tmp_path / "text").write_text("hello", encoding="utf-8")
    refused(invoke("show", tmp_path / "text"), "is not a trajectory")


def test_a_record_that_contradicts_itself_is_one_line(trace: Path, tmp_path: Path, record: Trajectory) -> None:
    """The same slots are committed at two steps."""
    events = {name: getattr(record, name) for name in ("row", "step", "kind", "slot", "token", "confidence")}
    twice = {name: torch.cat((values, values)) for name, values in events.items()}
    twice["step"] = torch.cat((record.step, (record.step + 1).clamp_max(int(record.step.max()))))
    replace(record, **twice).save(tmp_path / "odd")
    refused(invoke("show", tmp_path / "odd"), 'odd" is damaged')


def test_a_record_without_words_asks_the_tokenizer_of_its_model(record: Trajectory, tmp_path: Path) -> None:
    record.save(tmp_path / "whole")
    replace(record, words={}, controls={}).save(tmp_path / "bare")
    whole, bare = (shown(tmp_path / name, "--width", 120) for name in ("whole", "bare"))
    assert bare.stdout.replace("bare", "whole").splitlines()[1:] == whole.stdout.splitlines()[1:]
    assert bare.stderr == ""


@pytest.mark.parametrize("model", ["someone/a-model-of-the-hub", "/a/folder/that/is/gone", "builtin:nothing", ""])
def test_a_missing_model_prevents_nothing(record: Trajectory, tmp_path: Path, model: str) -> None:
    replace(record, words={}, controls={}, facts={"model": model} if model else {}).save(tmp_path / "bare")
    result = shown(tmp_path / "bare", "--step", 3)
    assert "tokens are shown as ids" in result.stderr and result.stderr.count("\n") == 1
    token = int(record.token[record.row == 0][0])
    assert f"<{token}>" in result.stdout.replace("\u2502\n\u2502", "").replace(" ", "")


def test_a_record_of_the_first_format_is_shown_and_says_what_it_lacks(
    record: Trajectory, trace: Path, tmp_path: Path
) -> None:
    tensors = {
        name: tensor if tensor.dtype in (torch.bool, torch.float32) else tensor.long()
        for name, tensor in load_file(trace).items()
        if not name.startswith("view.")
    }
    notes = {"format": "unmask-trajectory-1", "facts": f'{{"model": "{CHECKPOINT}"}}'}
    notes["model"] = f'{{"mask_id": {record.start.mask_id}, "end_ids": [], "shift": 0}}'
    save_file(tensors, tmp_path / "old", metadata=notes)
    assert "does not say what the model was shown" in shown(tmp_path / "old").stdout


def test_a_trace_of_generate_can_be_shown_anywhere(
    llada: unmask.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the text of its tokens and what the model was shown."""
    monkeypatch.setattr("unmask.loading.load", lambda name, **options: llada)
    file = tmp_path / "run.trace"
    assert invoke("generate", "sort", "--length", 8, "--model", CHECKPOINT, "--trace", file).exit_code == 0
    made = Trajectory.load(file)
    assert made.views is not None and len(made.views.asked) and made.words
    monkeypatch.setattr("unmask.models.text.Text.load", lambda *_: pytest.fail("asked for the tokenizer"))
    assert "sort" in shown(file).stdout


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no terminals of this kind")
def test_a_person_can_step_through_it_in_a_terminal(trace: Path) -> None:
    import fcntl
    import pty
    import struct
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    before = termios.tcgetattr(theirs)
    command = [sys.executable, "-m", "unmask", "show", str(trace)]
    env = {**os.environ, "TERM": "xterm-256color"}
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env)
    try:
        read_until(ours, "step 0/")
        os.write(ours, b"\x1b[C")
        read_until(ours, "step 1/")
        os.write(ours, b"c")
        read_until(ours, "unsure")
        os.write(ours, b"q")
        read_until(ours, "\x1b[?1049l")
        assert process.wait(60) == 0
        assert termios.tcgetattr(theirs) == before, "the terminal is as it was"
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(theirs)


def read_until(source: int, wanted: str, patience: float = 120.0) -> None:
    content, end = "", time.monotonic() + patience
    while wanted not in content:
        assert time.monotonic() < end, f"no {wanted!r} in {content!r}"
        if select.select([source], [], [], 1.0)[0]:
            content += os.read(source, 65536).decode(errors="replace")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no terminals of this kind")
def test_a_terminal_that_goes_away_leaves_no_traceback(trace: Path) -> None:
    import pty

    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "unmask", "show", str(trace)]
    env = {**os.environ, "TERM": "xterm-256color"}
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, env=env, text=True)
    os.close(theirs)
    try:
        read_until(ours, "step 0/")
    finally:
        os.close(ours)
    try:
        assert "Traceback" not in process.communicate(timeout=60)[1]
    finally:
        process.kill()
