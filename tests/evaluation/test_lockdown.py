"""Each layer of the sandbox's lockdown on its own, with the others switched off."""

import subprocess
import sys
from pathlib import Path

import pytest

from unmask.evaluation import box

BOX = Path(box.__file__).parent
SCRIPT = """
import sys, types
for name, path in (("unmask", ""), ("unmask.evaluation", sys.argv[1] + "/..")):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [path]
from unmask.evaluation.box import lockdown
{off}
import os, socket, subprocess, threading, signal, fcntl, importlib
layers = lockdown.lock(sys.argv[2], seconds=5.0, memory=2**29)
print(*layers, flush=True)
outside = sys.argv[3]
{attack}
print("broken", flush=True)
"""
ONLY_KERNEL = "lockdown._hook = lambda *a: (lambda *b: None)"
ONLY_HOOK = "lockdown._kernel = lambda *a: []"

BY_BOTH = [
    "open('/etc/hostname')",
    "open(outside)",
    "open(outside, 'w')",
    "open(outside, 'a')",
    "os.remove(outside)",
    "os.rename(outside, 'mine')",
    "os.truncate(outside, 0)",
    "os.listdir('/')",
    "os.mkdir(outside + '.folder')",
    "os.symlink(outside, 'link')",
    "os.link(outside, 'link')",
    "os.chmod(outside, 0)",
    "os.chown(outside, 1, 1)",
    "os.utime(outside)",
    "open('/proc/self/mem', 'r+b')",
    "open('/proc/self/environ')",
    "socket.socket()",
    "socket.socketpair()",
    "os.fork()",
    "os.posix_spawn('/bin/true', ['true'], {})",
    "os.execv('/bin/true', ['true'])",
    "subprocess.run(['/bin/true'])",
    "os.kill(os.getppid(), signal.SIGKILL)",
    "os.killpg(os.getpgid(os.getppid()), 0)",
    "__import__('resource').setrlimit(7, (99, 99))",
    "__import__('ctypes').CDLL(None)['fork']() != -1 or 1 / 0",
]
BY_KERNEL = [
    "threading.Thread(target=print).start()",
    "fcntl.fcntl(0, fcntl.F_SETOWN, os.getppid())",
    "os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)",
    "os.memfd_create('x')",
    "os.sched_setaffinity(os.getppid(), {0})",
    "os.setuid(1)",
    "os.chroot('.')",
    "os.pidfd_open(os.getppid())",
    "os.mkfifo('fifo')",
]


def outcome(off: str, attack: str, tmp_path: Path) -> tuple[list[str], str, str]:
    """Layers, what was printed behind them, and the last line of the error."""
    folder, outside = tmp_path / "mine", tmp_path / "outside"
    folder.mkdir()
    outside.write_text("here", encoding="utf-8")
    script = SCRIPT.replace("{off}", off).replace("{attack}", attack)
    command = [sys.executable, "-I", "-S", "-B", "-c", script, str(BOX), str(folder), str(outside)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env={}, timeout=60)
    layers, _, rest = done.stdout.partition("\n")
    assert layers, done.stderr
    assert outside.read_text(encoding="utf-8") == "here"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "outside"]
    return layers.split(), rest.strip(), (done.stderr.strip().splitlines() or [""])[-1]


@pytest.mark.skipif(sys.platform != "linux", reason="Landlock and seccomp are Linux's")
@pytest.mark.parametrize("attack", BY_BOTH + BY_KERNEL)
def test_the_kernel_holds_without_the_audit_hook(attack: str, tmp_path: Path) -> None:
    layers, printed, error = outcome(ONLY_KERNEL, attack, tmp_path)
    if not {"landlock", "seccomp"} <= set(layers):
        pytest.skip("this kernel has them switched off")
    assert printed == ""
    assert error


@pytest.mark.parametrize("attack", BY_BOTH)
def test_the_audit_hook_holds_without_the_kernel(attack: str, tmp_path: Path) -> None:
    layers, printed, error = outcome(ONLY_HOOK, attack, tmp_path)
    assert "landlock" not in layers
    assert printed == ""
    assert "PermissionError" in error or "not allowed" in error or "ImportError" in error


@pytest.mark.parametrize("off", [ONLY_KERNEL, ONLY_HOOK, "pass"])
def test_the_folder_and_the_standard_library_stay_open(off: str, tmp_path: Path) -> None:
    work = (
        "os.mkdir('a'); open('a/b', 'w').write('x'); os.rename('a/b', 'a/c'); assert os.listdir('a') == ['c']\n"
        "os.truncate('a/c', 0); os.remove('a/c'); os.rmdir('a')\n"
        "for name in ('statistics', 'fractions', 'email.message', 'zipfile', 'difflib'): importlib.import_module(name)"
    )
    assert outcome(off, work, tmp_path)[1] == "broken"
