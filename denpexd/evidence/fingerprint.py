"""How a rank was started, as its process shows it: command, commit, packages, driver, image, environment.

Only files are read, in the process's own file system: nothing of the job is imported, no program is run (so no hook of
git either), and what cannot be read is left out. Texts are as they were found: they may hold secrets.
Every call reads files that may lie on a network: keep it off the event loop, and off threads that others need.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from denpexd.evidence.git_head import commit_of, read_file

_COMMAND, _ENVIRON, _MAPS, _SMALL = 32 << 10, 2 << 20, 16 << 20, 16 << 10
_MOST_PACKAGES = 600
_LONGEST = 600
_DEEPEST = 40

_ENV = re.compile(
    r"(?:NCCL|RCCL|TORCH|PYTORCH|TORCHINDUCTOR|TORCHDYNAMO|INDUCTOR|CUDA|CUDNN|CUBLAS|NVIDIA|NVTE|HF|TRANSFORMERS|DATASETS"
    r"|ACCELERATE|FSDP|DS|DEEPSPEED|MEGATRON|OMP|MKL|KMP|OPENBLAS|GLOO|UCX|FI|IB|HSA|HIP|ROCR|XLA|JAX|TRITON|TOKENIZERS"
    r"|MALLOC|PL|LIGHTNING|RAY|WANDB)_[A-Z0-9_]*|PYTHON[A-Z]+"
    r"|LD_LIBRARY_PATH|LD_PRELOAD|WORLD_SIZE|LOCAL_WORLD_SIZE|SLURM_(?:JOB_PARTITION|NNODES|NTASKS|CPUS_PER_TASK|GPUS_PER_NODE"
    r"|MEM_PER_NODE)|LC_ALL|TZ"
)
# What every run and every rank has otherwise says nothing.
_OWN = re.compile(
    r"TORCHELASTIC_\w+|WANDB_(?:RUN_ID|RUN_NAME|NAME|SERVICE|_SERVICE|DIR|RUN_DIR)|RAY_(?:JOB|WORKER|NODE|SESSION|ADDRESS)\w*"
    r"|PYTHON_?(?:PID|STARTUP)|TORCH_NCCL_RANKS_\w+|NCCL_COMM_ID|DS_(?:RANK|LOCAL_RANK)|PL_GLOBAL_RANK|RAYLET_PID"
)
_IMAGE = (
    *("CONTAINER_IMAGE", "IMAGE_NAME", "APPTAINER_CONTAINER", "SINGULARITY_CONTAINER", "SINGULARITY_NAME"),
    *("NVIDIA_PYTORCH_VERSION", "NVIDIA_BUILD_ID", "PYTORCH_BUILD_VERSION", "SLURM_CONTAINER", "PYXIS_IMAGE"),
)
_RUNTIMES = (("kubepods", "kubernetes"), ("docker", "docker"), ("libpod", "podman"), ("lxc", "lxc"))
_DIST = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*?)-([^-/]+)\.dist-info")
_SITE = re.compile(rb"(/[^\n]*?/(?:site|dist)-packages)/")
_LIBRARY = re.compile(rb"/lib(nccl|cudart|cudnn)\.so\.(\d+(?:\.\d+){1,3})")
_CUDA = re.compile(r"^cuda\s*(?::[^=\n]+)?=\s*['\"]([0-9.]+)['\"]", re.M)
_TORCH = re.compile(r"^__version__\s*=\s*['\"]([^'\"\n]+)['\"]", re.M)
_DRIVER = re.compile(r"Kernel Module[^\n]*?\s(\d+\.\d+(?:\.\d+)?)\b")
_RANK_OPTION = re.compile(r"(--(?:local[-_]rank|node[-_]rank|rank|machine[-_]rank)(?:=|\s+))\d+")


class Fingerprints:
    """Looks at processes below `proc`; a folder of packages is listed once as long as it does not change."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._listed: dict[tuple[int, int, int], dict[str, str]] = {}

    def of(self, pid: int) -> dict[str, str]:
        """The facts of one process (core/launch.py names them); empty if nothing of it may be read."""
        facts: dict[str, str] = {}
        for part in (self._command, self._environment, self._git, self._software, self._driver, self._image):
            try:
                facts |= part(pid)
            except (OSError, ValueError):
                continue  # gone, or not ours to see
        return {name: _cut(value) for name, value in facts.items() if value}

    def _path(self, pid: int, *parts: str) -> str:
        return os.path.join(self._proc, str(pid), *parts)

    def _inside(self, pid: int, path: str) -> str:
        """A path of the process in our eyes: it may live in another container."""
        return f"{self._path(pid, 'root')}{path}"

    def _words(self, pid: int) -> list[str]:
        data = read(self._path(pid, "cmdline"), _COMMAND).decode("utf-8", "replace")
        return [word for word in data.split("\0") if word]

    def _variables(self, pid: int) -> dict[str, str]:
        entries = read(self._path(pid, "environ"), _ENVIRON).decode("utf-8", "replace").split("\0")
        return {name: value for name, _, value in (entry.partition("=") for entry in entries) if name}

    def _cwd(self, pid: int) -> str:
        return os.readlink(self._path(pid, "cwd"))

    def _command(self, pid: int) -> dict[str, str]:
        words = self._words(pid)
        script = next((w for w in words[1:] if w.endswith((".py", ".sh"))), words[-1] if words else "")
        if "-m" in words[1:-1]:
            script = words[words.index("-m", 1) + 1]
        facts = {"command": _RANK_OPTION.sub(r"\1*", " ".join(words)), "program": os.path.basename(script)}
        return facts | {"cwd": self._cwd(pid)}

    def _environment(self, pid: int) -> dict[str, str]:
        chosen = {n: v for n, v in self._variables(pid).items() if _ENV.fullmatch(n) and not _OWN.fullmatch(n)}
        return {f"env.{name}": value for name, value in sorted(chosen.items())[:300]}

    def _git(self, pid: int) -> dict[str, str]:
        """The commit of the working folder; whether files were changed beyond it is not known."""
        at = self._cwd(pid)
        for _ in range(_DEEPEST):
            found = commit_of(self._inside(pid, at), lambda path: self._inside(pid, path))
            if found or at == "/":
                return found
            at = os.path.dirname(at)
        return {}

    def _software(self, pid: int) -> dict[str, str]:
        facts: dict[str, str] = {}
        maps = read(self._path(pid, "maps"), _MAPS)
        for name, version in _LIBRARY.findall(maps):
            facts.setdefault({b"cudart": "cuda"}.get(name, name.decode()), version.decode())
        for folder in self._site_packages(pid, maps):
            for package, version_ in self._packages(folder).items():
                facts.setdefault(f"package.{package}", version_)
            try:
                about = read_file(f"{folder}/torch/version.py", _SMALL).decode("utf-8", "replace")
            except OSError:
                continue
            if "torch" not in facts and (torch := _TORCH.search(about)):
                facts["torch"] = torch[1]
                facts.pop("package.torch", None)
            if cuda := _CUDA.search(about):
                facts["cuda"] = cuda[1]
        exe = os.path.basename(os.readlink(self._path(pid, "exe")))
        return facts | ({"python": exe.removeprefix("python")} if re.fullmatch(r"python\d[\d.]*", exe) else {})

    def _site_packages(self, pid: int, maps: bytes) -> list[str]:
        """Where the interpreter finds its packages: what it has loaded, and the folders beside it."""
        found = dict.fromkeys(path.decode("utf-8", "replace") for path in _SITE.findall(maps))
        variables = self._variables(pid)
        words = self._words(pid)
        prefixes = [variables.get(name, "") for name in ("VIRTUAL_ENV", "CONDA_PREFIX")]
        programs = (words[0] if words else "", os.readlink(self._path(pid, "exe")))
        prefixes += [program.rpartition("/bin/")[0] for program in programs]
        for prefix in filter(lambda text: text.startswith("/"), dict.fromkeys(prefixes)):
            lib = self._inside(pid, f"{prefix}/lib")
            try:
                versions = [each.name for each in Path(lib).iterdir() if re.fullmatch(r"python3\.\d+", each.name)]
            except OSError:
                continue
            found |= dict.fromkeys(f"{prefix}/lib/{name}/site-packages" for name in sorted(versions))
        return [self._inside(pid, path) for path in list(found)[:8]]

    def _packages(self, folder: str) -> dict[str, str]:
        try:
            info = Path(folder).stat()
            key = (info.st_dev, info.st_ino, info.st_mtime_ns)
            if key not in self._listed:
                self._listed[key] = dict(list(_installed(folder))[:_MOST_PACKAGES])
        except OSError:
            return {}
        while len(self._listed) > 16:
            del self._listed[next(iter(self._listed))]
        return self._listed[key]

    def _driver(self, pid: int) -> dict[str, str]:
        text = read(os.path.join(self._proc, "driver/nvidia/version"), _SMALL).decode("utf-8", "replace")
        found = _DRIVER.search(text)
        return {"driver": found[1]} if found else {}

    def _image(self, pid: int) -> dict[str, str]:
        variables = self._variables(pid)
        facts = {f"image.{name}": variables[name] for name in _IMAGE if name in variables}
        groups = read(self._path(pid, "cgroup"), _SMALL).decode("utf-8", "replace")
        runtime = next((name for mark, name in _RUNTIMES if mark in groups), "")
        facts["image.runtime"] = runtime or ("kubernetes" if "KUBERNETES_SERVICE_HOST" in variables else "")
        try:
            release = read_file(self._inside(pid, "/etc/os-release"), _SMALL, links=True).decode("utf-8", "replace")
        except OSError:
            return facts
        named = re.search(r'^PRETTY_NAME="?([^"\n]+)', release, re.M)
        return facts | ({"image.os": named[1]} if named else {})


def _installed(folder: str) -> Iterator[tuple[str, str]]:
    """Names and versions of the installed distributions, by the names of their folders."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if found := _DIST.fullmatch(entry.name):
                yield re.sub(r"[-_.]+", "-", found[1]).lower(), found[2]


def read(path: str, limit: int) -> bytes:
    """At most `limit` bytes of a file of /proc, which come in pieces."""
    with Path(path).open("rb", buffering=0) as file:
        data = piece = file.read(limit)
        while piece and len(data) < limit:
            piece = file.read(limit - len(data))
            data += piece
        return data


def _cut(value: str) -> str:
    return value if len(value) <= _LONGEST else value[: _LONGEST - 3] + "..."
