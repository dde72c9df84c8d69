"""Two processes against one; see two_processes.py for what they run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from training.helpers import losses_of, tiny_run


@pytest.mark.slow
@pytest.mark.parametrize("how", ["whole", "parts"])
def test_two_processes_compute_what_one_computes(tmp_path: Path, how: str) -> None:
    """With parts of the weights, too, in a run that is resumed in the middle."""
    script = Path(__file__).with_name("two_processes.py")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, str(script), str(tmp_path), how], check=True, env=environment, timeout=300)
    shared = [json.loads((tmp_path / f"losses-{rank}.json").read_text()) for rank in range(2)]
    run = tiny_run()
    assert shared[0] == shared[1]
    assert shared[0] == pytest.approx(losses_of(run), rel=1e-4)
    weights = [torch.load(tmp_path / f"weights-{rank}.pt") for rank in range(2)]
    for name, value in run.model.state_dict().items():
        assert torch.equal(weights[0][name], weights[1][name])
        assert torch.allclose(weights[0][name], value, atol=1e-3)
    if how == "parts":  # one process goes on with the checkpoint of two
        losses_of(tiny_run(tmp_path / "alone"))
        alone = losses_of(tiny_run(tmp_path / "alone", steps=10), resume=True)
        assert losses_of(tiny_run(tmp_path / "run", steps=10), resume=True) == pytest.approx(alone, rel=1e-3)
