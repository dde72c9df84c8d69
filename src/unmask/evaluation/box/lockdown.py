"""Takes from the running process, for good, what code under test must not have.

Three layers, each of which holds where the ones above it fail:

1. an audit hook of the interpreter: files outside the folder, sockets, processes, signals and foreign functions raise
   PermissionError (every system);
2. limits of the system on CPU time, address space, size of files and number of open files (every POSIX system);
3. on Linux, rules of the kernel that no native code gets around: Landlock gives the folder and, for reading, the
   standard library; seccomp allows the system calls that computing needs and no others: no process, no thread, no
   program, no socket, no signal to others, no change of owner or mode.

Nothing here needs root, and root does not get around it.
"""

import importlib
import math
import os
import platform
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

LARGEST_FILE = 2**20  # bytes
MOST_FILES = 64  # opened for writing
OPEN_FILES = 32
# Modules that link to libraries of the system, which lie outside the standard library: loaded before the doors close.
_LINKED = ("binascii", "zlib", "bz2", "lzma", "decimal")

# number on x86-64 and on arm64
_CALLS = {
    "read": (0, 63), "write": (1, 64), "close": (3, 57), "fstat": (5, 80), "lseek": (8, 62), "mmap": (9, 222),
    "mprotect": (10, 226), "munmap": (11, 215), "mremap": (25, 216), "madvise": (28, 233), "brk": (12, 214),
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "sigaltstack": (131, 132),
    "pread64": (17, 67), "pwrite64": (18, 68), "readv": (19, 65), "writev": (20, 66), "sched_yield": (24, 124),
    "restart_syscall": (219, 128), "dup": (32, 23), "dup3": (292, 24), "pipe2": (293, 59), "pselect6": (270, 72),
    "ppoll": (271, 73), "nanosleep": (35, 101), "clock_nanosleep": (230, 115), "clock_gettime": (228, 113),
    "clock_getres": (229, 114), "gettimeofday": (96, 169), "times": (100, 153), "getrusage": (98, 165),
    "sysinfo": (99, 179), "uname": (63, 160), "getpid": (39, 172), "getppid": (110, 173), "gettid": (186, 178),
    "getuid": (102, 174), "getgid": (104, 176), "geteuid": (107, 175), "getegid": (108, 177), "futex": (202, 98),
    "set_tid_address": (218, 96), "set_robust_list": (273, 99), "rseq": (334, 293), "exit": (60, 93),
    "exit_group": (231, 94), "getrandom": (318, 278), "openat": (257, 56), "newfstatat": (262, 79),
    "statx": (332, 291), "faccessat": (269, 48), "faccessat2": (439, 439), "mkdirat": (258, 34), "unlinkat": (263, 35),
    "renameat": (264, 38), "renameat2": (316, 276), "readlinkat": (267, 78), "getdents64": (217, 61),
    "getcwd": (79, 17), "chdir": (80, 49), "umask": (95, 166), "fsync": (74, 82), "fdatasync": (75, 83),
    "truncate": (76, 45), "ftruncate": (77, 46), "setitimer": (38, 103), "getitimer": (36, 102),
}  # fmt: skip
_OLD_CALLS = {  # on x86-64 only
    "open": 2, "stat": 4, "lstat": 6, "access": 21, "poll": 7, "select": 23, "pipe": 22, "dup2": 33, "getdents": 78,
    "rename": 82, "mkdir": 83, "rmdir": 84, "unlink": 87, "readlink": 89, "arch_prctl": 158, "time": 201, "creat": 85,
}  # fmt: skip
_FCNTL = (72, 25)
_FCNTL_COMMANDS = (0, 1, 2, 3, 4, 1030)  # duplicate, read and set flags; not: whom to send signals
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}

# Rights of Landlock: its first version has 13 on files, later ones add to them.
_READ_FILE, _READ_FOLDER = 1 << 2, 1 << 3
_INSIDE = 1 << 1 | _READ_FILE | _READ_FOLDER | 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8  # write, read, remove, make
_TRUNCATE = 1 << 14

# Events of the interpreter that never pass. One that ends in a dot stands for all that start so.
_FORBIDDEN = (
    "socket.", "subprocess.", "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn",
    "os.startfile", "os.kill", "os.killpg", "os.link", "os.symlink", "os.chmod", "os.chown", "os.chflags", "os.lockf",
    "os.setxattr", "os.removexattr", "os.getxattr", "os.listxattr", "os.utime", "os.putenv", "os.unsetenv",
    "os.add_dll_directory", "os.walk.", "os.fwalk.", "pty.", "ctypes.", "fcntl.", "resource.", "signal.pthread_kill",
    "_thread.start_new_thread", "syslog.", "sqlite3.", "webbrowser.", "winreg.", "msvcrt.", "gc.", "code.__new__",
    "sys.addaudithook", "cpython.remote_debugger_script", "sys.remote_exec", "setopencodehook",
)  # fmt: skip
# Events with paths to change: how many there are, and where the descriptors of their folders begin.
_PATHS = {
    "os.remove": (1, 1), "os.rename": (2, 2), "os.mkdir": (1, 2), "os.rmdir": (1, 1), "os.truncate": (1, 2),
    "os.chdir": (1, 1),
}  # fmt: skip


def lock(folder: str, *, seconds: float, memory: int) -> list[str]:
    """Lock this process down.

    Args:
        folder: the only place where files can be written, an absolute path without links.
        seconds: CPU time left.
        memory: address space, bytes.

    Returns:
        The layers in force, of "limits", "landlock", "seccomp" and "audit".
    """
    for name in _LINKED:
        with suppress(ImportError):
            importlib.import_module(name)
    roots = _library()
    layers = [name for name, done in (("limits", _limits(seconds, memory)),) if done]
    layers += _kernel(folder, roots)
    for name in [name for name in sys.modules if name.split(".")[0] in ("ctypes", "_ctypes", "unmask", "resource")]:
        del sys.modules[name]
    sys.addaudithook(_hook(folder, roots))
    return [*layers, "audit"]


def _library() -> tuple[str, ...]:
    """Folders of the standard library."""
    named = [os.path.dirname(os.__file__), *(path for path in sys.path if path.endswith("lib-dynload"))]
    found = {path for name in named for path in (name, os.path.realpath(name)) if os.path.isdir(path)}
    return tuple(sorted(found))


def _limits(seconds: float, memory: int) -> bool:
    try:
        import resource
    except ImportError:  # Windows
        return False
    usage = resource.getrusage(resource.RUSAGE_SELF)
    cpu = math.ceil(usage.ru_utime + usage.ru_stime + seconds)
    limits = {"CPU": (cpu, cpu + 1), "AS": (memory,) * 2, "FSIZE": (LARGEST_FILE,) * 2, "NOFILE": (OPEN_FILES,) * 2}
    for name, limit in (limits | {"NPROC": (0, 0), "CORE": (0, 0)}).items():
        try:
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), limit)
        except (AttributeError, ValueError, OSError):
            continue  # a system that lacks this limit keeps the others
    return True


def _kernel(folder: str, roots: tuple[str, ...]) -> list[str]:
    """The layers that the kernel takes on."""
    if sys.platform != "linux" or platform.machine() not in _ARCHITECTURES:
        return []
    try:
        import ctypes

        system = ctypes.CDLL(None, use_errno=True)
        zero = ctypes.c_ulong(0)
        if system.prctl(38, ctypes.c_ulong(1), zero, zero, zero) != 0:  # PR_SET_NO_NEW_PRIVS
            return []
        done = [("landlock", _landlock(system, folder, roots)), ("seccomp", _seccomp(system))]
    except (ImportError, OSError, AttributeError):
        return []
    return [name for name, works in done if works]


def _landlock(system: Any, folder: str, roots: tuple[str, ...]) -> bool:
    """Files: the folder, and the library for reading. Network: none. Signals and sockets of others: none."""
    import ctypes
    import struct

    create, add, restrict = 444, 445, 446
    version = system.syscall(create, None, ctypes.c_size_t(0), 1)
    if version < 1:
        return False
    extra = (_TRUNCATE if version >= 3 else 0) | (1 << 13 if version >= 2 else 0) | (1 << 15 if version >= 5 else 0)
    words = [(1 << 13) - 1 | extra] + [3] * (version >= 4) + [3] * (version >= 6)
    handled = struct.pack(f"={len(words)}Q", *words)
    rules = system.syscall(create, handled, ctypes.c_size_t(len(handled)), 0)
    if rules < 0:
        return False
    allowed = dict.fromkeys(roots, _READ_FILE | _READ_FOLDER) | {folder: _INSIDE | (_TRUNCATE & extra)}
    try:
        for path, rights in allowed.items():
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)
            try:
                if system.syscall(add, rules, 1, struct.pack("=Qi", rights, place), 0) != 0:
                    return False
            finally:
                os.close(place)
        return bool(system.syscall(restrict, rules, 0) == 0)
    finally:
        os.close(rules)


def _seccomp(system: Any) -> bool:
    """System calls: those of the list; any other fails with EACCES."""
    import ctypes
    import struct

    column, architecture = _ARCHITECTURES[platform.machine()]
    numbers = [pair[column] for pair in _CALLS.values()] + ([] if column else list(_OLD_CALLS.values()))
    allow, refuse, kill = 0x7FFF0000, 0x00050000 | 13, 0x80000000
    load, equal, give = 0x20, 0x15, 0x06
    code: list[tuple[int, int, int, int]] = [(load, 0, 0, 4), (equal, 1, 0, architecture), (give, 0, 0, kill)]
    code.append((load, 0, 0, 0))
    for number in sorted(numbers):
        code += [(equal, 0, 1, number), (give, 0, 0, allow)]
    code += [(equal, 1, 0, _FCNTL[column]), (give, 0, 0, refuse), (load, 0, 0, 24)]  # its command, low half
    for command in _FCNTL_COMMANDS:
        code += [(equal, 0, 1, command), (give, 0, 0, allow)]
    code.append((give, 0, 0, refuse))
    program = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in code))
    header = struct.pack("@HP", len(code), ctypes.addressof(program))
    return bool(system.prctl(22, ctypes.c_ulong(2), header, 0, 0) == 0)  # PR_SET_SECCOMP, filter


def _hook(folder: str, roots: tuple[str, ...]) -> Callable[[str, tuple[Any, ...]], None]:
    """What the interpreter asks before it acts.

    Everything it uses stands in its closure. The code under test can reach the globals of a frame through a traceback
    and change them there, so a global name, or a function written in Python that uses one, could be turned around.
    """
    starts = tuple(one for one in _FORBIDDEN if one.endswith("."))
    whole = frozenset(_FORBIDDEN) - frozenset(starts)
    inside, readable, paths = folder + "/", tuple(root + "/" for root in roots), dict(_PATHS)
    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    failure, text_type, bytes_type, int_type, kind = PermissionError, str, bytes, int, type
    where, start, cut, decode = os.getcwd, str.startswith, str.split, bytes.decode
    counts = iter(range(MOST_FILES))
    following, ended = next, StopIteration

    def within(path: Any, places: tuple[str, ...]) -> bool:
        if kind(path) is bytes_type:
            path = decode(path, "utf-8", "surrogateescape")
        if kind(path) is not text_type:  # a subclass may answer in its own way
            return False
        if not start(path, "/"):
            path = where() + "/" + path
        return ".." not in cut(path, "/") and start(path + "/", places)

    def watch(event: str, given: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = given
            if kind(path) is int_type:
                return
            if kind(flags) is int_type and flags & writing:
                if not within(path, (inside,)):
                    raise failure("files can be written in the folder of the program only")
                try:
                    following(counts)
                except ended:
                    raise failure("too many files") from None
            elif not within(path, (inside, *readable)):
                raise failure("files can be read in the folder of the program only")
        elif event in paths:
            count, folders = paths[event]
            for path in given[:count]:
                if not within(path, (inside,)):
                    raise failure("files can be changed in the folder of the program only")
            for place in given[folders:]:
                if place != -1:
                    raise failure("files can be named by their paths only")
        elif event == "os.listdir" or event == "os.scandir":
            if given[0] is not None and not within(given[0], (inside, *readable)):
                raise failure("folders can be read in the folder of the program only")
        elif event == "import":
            if given[0] == "_ctypes" or given[0] == "ctypes":
                raise failure("ctypes is not there")
        elif event in whole or start(event, starts):
            raise failure(f"{event} is not allowed")

    return watch
