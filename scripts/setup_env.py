"""Prepare the checkout's virtual environment; run by the Makefile, needs only the standard library.

    python3 scripts/setup_env.py [run|test|dev|docs] [--venv .venv]

Each step leaves a stamp keyed on what it depends on, so a second run does nothing. While a step runs the
file `installing` lies beside the stamps: a set-up that was killed or failed is found by it and starts from
an empty environment, so a half-installed package is never used.

The set-up honours pip's configuration (index, certificate, local wheels). Torch is always installed by
pip, all else by uv where uv is to be had. On a machine with an NVIDIA driver the CUDA stack is installed;
FLASHAGENTS_DEVICE=cpu or =gpu decides otherwise.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements"
SPACE_NEEDED = {"cpu": 4 << 30, "gpu": 16 << 30}
# and what they add; tests build the documentation; of `train` no dependencies, which are there
LEVELS = {
    "run": (),
    "test": ("test", "train", "docs"),
    "dev": ("test", "train", "docs", "dev"),
    "docs": ("docs",),
}
NO_DEPENDENCIES = {"train"}


class SetupError(Exception):
    """The set-up cannot go on; the message says what to do."""


@dataclass
class Step:
    """One step of the set-up: `run` does it, `key` changes whenever it has to be done again."""

    name: str
    title: str
    key: str
    run: Callable[[Path], None]


@dataclass
class Environment:
    """A virtual environment with the state directory in which the stamps lie."""

    path: Path
    device: str
    uv_settings: dict[str, str] = field(default_factory=dict)

    @property
    def python(self) -> Path:
        return self.path / "bin" / "python"

    @property
    def state(self) -> Path:
        return self.path / ".flashagents"

    def has_uv(self) -> bool:
        return (self.path / "bin" / "uv").exists()

    def install(self, log: Path, *arguments: str, plain_pip: bool = False) -> None:
        """Install with uv, or with pip where uv is missing or `plain_pip` asks for it."""
        if self.has_uv() and not plain_pip:
            command = [str(self.path / "bin" / "uv"), "--no-progress", "pip", "install"]
            command += ["--python", str(self.python)]
            self.uv_settings = self.uv_settings or uv_settings(self.python)
        else:
            command = [str(self.python), "-m", "pip", "install", "--disable-pip-version-check"]
        call([*command, *arguments], log, self.uv_settings)


def call(command: Sequence[str], log: Path, extra_environment: dict[str, str] | None = None) -> None:
    """Run a command with all its output in `log`."""
    environment = {**os.environ, **(extra_environment or {}), "VIRTUAL_ENV": ""}
    with log.open("a") as out:
        out.write(f"$ {' '.join(command)}\n")
        out.flush()
        status = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, cwd=ROOT, env=environment,
                                stdin=subprocess.DEVNULL, check=False).returncode  # fmt: skip
    if status != 0:
        raise SetupError(f"`{' '.join(command[:6])} ...` ended with status {status}")


def uv_settings(python: Path) -> dict[str, str]:
    """pip's index and certificate as uv's environment variables, which do not follow pip's configuration."""
    listing = subprocess.run([str(python), "-m", "pip", "config", "list"], capture_output=True, text=True)
    pip: dict[str, str] = {}
    for line in listing.stdout.splitlines():
        name, _, value = line.partition("=")
        pip[name.rpartition(".")[2]] = value.strip().strip("'\"")
    found: dict[str, str] = {}
    if pip.get("index-url"):
        found["UV_DEFAULT_INDEX"] = pip["index-url"]
    extra = [url for url in pip.get("extra-index-url", "").split() if url.startswith("http")]
    if extra:
        found["UV_INDEX"] = " ".join(extra)
    if pip.get("cert"):
        found["SSL_CERT_FILE"] = pip["cert"]
    return {name: value for name, value in found.items() if name not in os.environ}


def detect_device() -> str:
    """`gpu` where an NVIDIA driver answers, else `cpu`; FLASHAGENTS_DEVICE wins."""
    wanted = os.environ.get("FLASHAGENTS_DEVICE", "").lower()
    if wanted in SPACE_NEEDED:
        return wanted
    if wanted:
        raise SetupError(f"FLASHAGENTS_DEVICE={wanted!r}: it must be `cpu` or `gpu`")
    if not shutil.which("nvidia-smi"):
        return "cpu"
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    answer = subprocess.run(query, capture_output=True, text=True, check=False)
    return "gpu" if answer.returncode == 0 and answer.stdout.strip() else "cpu"


def digest(*parts: str | Path) -> str:
    """One hash over strings and the contents of files."""
    total = hashlib.sha256()
    for part in parts:
        content = part.read_bytes() if isinstance(part, Path) else part.encode()
        total.update(hashlib.sha256(content).digest())
    return total.hexdigest()


def check_machine(device: str, target: Path) -> None:
    """Refuse early, with one clear sentence, what cannot work."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise SetupError("this set-up is for Linux on x86-64 (SGLang's wheels are)")
    if not (3, 11) <= sys.version_info[:2] < (3, 13):
        raise SetupError(f"Python 3.11 or 3.12 is needed, this is {platform.python_version()}")
    libc = platform.libc_ver()[1]
    if libc and tuple(int(x) for x in libc.split(".")[:2]) < (2, 34):
        raise SetupError(f"glibc 2.34 or newer is needed by SGLang's wheel, this machine has {libc}")
    free = shutil.disk_usage(target).free
    if free < SPACE_NEEDED[device]:
        raise SetupError(
            f"{SPACE_NEEDED[device] >> 30} GiB of free disk are needed, {target} has {free / 2**30:.1f}:"
            " free some, or choose another place with `make VENV=/path/to/venv ...`"
        )


def steps_for(env: Environment, extras: Sequence[str]) -> list[Step]:
    """The steps of `run`, and one for each of the extra sets of requirements, in order."""
    tools, torch_pin = REQUIREMENTS / "tools.txt", "torch==2.13.0"
    cpu, nodeps, gpu = (REQUIREMENTS / f"{name}.txt" for name in ("cpu", "cpu-nodeps", "gpu"))

    def make_venv(log: Path) -> None:
        call([sys.executable, "-m", "venv", str(env.path)], log)

    def install_uv(log: Path) -> None:
        try:
            env.install(log, "-r", str(tools), plain_pip=True)
        except SetupError:
            say("  uv is not to be had from this package index: pip is used instead (some minutes slower)")

    def install_project(log: Path) -> None:
        env.install(log, "--no-deps", "--editable", str(ROOT))

    def install_from(*arguments: str, plain_pip: bool = False) -> Callable[[Path], None]:
        return lambda log: env.install(log, *arguments, plain_pip=plain_pip)

    steps = [
        Step("venv", f"virtual environment {env.path.name}", digest(sys.version, str(env.path)), make_venv),
        Step("tools", "uv", digest(tools), install_uv),
    ]
    if env.device == "gpu":
        steps.append(Step("gpu", "SGLang with its CUDA stack (several GB)", digest(gpu),
                          install_from("--no-deps", "-r", str(gpu))))  # fmt: skip
    else:
        steps += [
            Step("torch", torch_pin, digest(torch_pin), install_from(torch_pin, plain_pip=True)),
            Step("cpu", "packages for a machine without a GPU", digest(cpu), install_from("-r", str(cpu))),
            Step("sglang", "sglang==0.5.18", digest(nodeps), install_from("--no-deps", "-r", str(nodeps))),
        ]
    project_key = digest(str(ROOT), ROOT / "pyproject.toml")
    steps.append(Step("project", "flashagents-autogen (this checkout)", project_key, install_project))
    for extra in extras:
        pins = REQUIREMENTS / f"{extra}.txt"
        options = ["--no-deps"] if extra in NO_DEPENDENCIES else []
        steps.append(Step(extra, f"tools for {extra}", digest(pins), install_from(*options, "-r", str(pins))))
    return steps


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def elapsed(label: str) -> Iterator[None]:
    """Show a running clock on a terminal, one line at the end everywhere."""
    start, done = time.monotonic(), threading.Event()
    on_terminal = sys.stderr.isatty()

    def tick() -> None:
        while not done.wait(0.5):
            print(f"\r  {label} ... {time.monotonic() - start:4.0f} s", end="", file=sys.stderr, flush=True)

    clock = threading.Thread(target=tick, daemon=True)
    if on_terminal:
        clock.start()
    try:
        yield
    finally:
        done.set()
        if on_terminal:
            clock.join()
            print("\r\033[K", end="", file=sys.stderr)
    say(f"  {label}: {time.monotonic() - start:.0f} s")


def empty(env: Environment) -> None:
    """Remove an environment of ours; one that somebody else made is left alone."""
    if not env.path.exists():
        return
    if not env.state.is_dir() and any(env.path.iterdir()):
        raise SetupError(
            f"{env.path} was not made by this set-up and is left as it is:"
            " move it away, or choose another place with `make VENV=.venv-flashagents ...`"
        )
    shutil.rmtree(env.path)


def prepare(env: Environment, extras: Sequence[str]) -> None:
    """Do the steps that are due, in order."""
    steps = steps_for(env, extras)
    marker, log = env.state / "installing", env.state / "setup.log"
    stamps = {step.name: env.state / f"{step.name}.json" for step in steps}

    def is_done(step: Step) -> bool:
        try:
            return bool(json.loads(stamps[step.name].read_text())["key"] == step.key)
        except (OSError, ValueError, KeyError):
            return False

    # Another Python, or the other device's packages, do not mix with what is there: begin anew.
    mixed = (env.state / ("torch.json" if env.device == "gpu" else "gpu.json")).exists()
    if marker.exists() or mixed or not is_done(steps[0]) or not env.python.exists():
        empty(env)
    due = [step for step in steps if not is_done(step)]
    if not due:
        return
    parent = next(p for p in [env.path, *env.path.parents] if p.exists())
    if len(due) > 3:
        check_machine(env.device, parent)
    say(f"Set-up of {env.path} ({env.device}), log in {log}")
    env.state.mkdir(parents=True, exist_ok=True)
    marker.touch()
    for step in due:
        start = log.stat().st_size if log.exists() else 0
        try:
            with elapsed(step.title):
                step.run(log)
        except SetupError:
            output = log.read_text(errors="replace")[start:].strip().splitlines()
            say("\n".join(output[-40:]))
            raise
        stamps[step.name].write_text(json.dumps({"key": step.key}) + "\n")
    marker.unlink()


def main() -> int:
    """Parse the command line, take the lock, prepare; 0 on success, 1 with a message, 130 on Ctrl-C."""
    parser = argparse.ArgumentParser(description="Prepare the checkout's virtual environment.")
    parser.add_argument("level", nargs="?", default="run", choices=list(LEVELS))
    parser.add_argument("--venv", default=".venv", type=Path)
    options = parser.parse_args()
    try:
        env = Environment((ROOT / options.venv).absolute(), detect_device())
        lock = os.open(REQUIREMENTS, os.O_RDONLY)  # two set-ups at once: the second waits for the first
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            prepare(env, LEVELS[options.level])
        finally:
            os.close(lock)
    except SetupError as error:
        say(f"set-up failed: {error}")
        return 1
    except OSError as error:
        say(f"set-up failed: {error.strerror}: {error.filename}")
        return 1
    except KeyboardInterrupt:
        say("\nset-up interrupted: the next run starts it anew")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
