"""Virtual environments of the libraries that benchmarks/rules.py and rounds.py compare with Phalanx.

python benchmarks/peers.py FOLDER [byzfl byzpy flwr torchjd] [--torch-index https://download.pytorch.org/whl/cpu]
python benchmarks/peers.py FOLDER byzfl pfl flwr-simulation      # for benchmarks/rounds.py

Makes FOLDER/byzfl, FOLDER/byzpy and so on, each a virtual environment of this Python, of 1.1 to 1.6 GB.
They compute with the torch, NumPy and SciPy of constraints.txt, so that a difference in speed is not one of the
libraries underneath; ByzPy has the last NumPy below 2.1, which it asks for.  On Linux PyPI's torch brings CUDA along,
some gigabytes: --torch-index takes the CPU build instead.

ByzFL and ByzPy are installed without their declared dependencies, and then with those that their rules need: both
require torchvision, which they use for data sets only (a placeholder replaces it), and ByzPy 0.1.4 requires torch below
2.6 but runs with later versions.
"""

import argparse
import subprocess
import sys
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

CONSTRAINTS = Path(__file__).parent.parent / "constraints.txt"

PLACEHOLDER = '''"""A placeholder for torchvision, which is imported for data sets that the rules do not use."""


class _Anything:
    def __init__(self, *args, **kwargs): ...

    def __getattr__(self, name):
        return _Anything


datasets, transforms = _Anything(), _Anything()
'''


@dataclass(frozen=True)
class Peer:
    """A library of robust aggregation, and how to install it.

    Args:
        requirement: the version that is compared.
        first: packages to install first, at the versions of constraints.txt unless a version is given here.
        bare: whether to install it without its declared dependencies.
        probe: a statement that must run in the finished environment.
    """

    requirement: str
    first: tuple[str, ...]
    bare: bool
    probe: str


PEERS = {
    "byzfl": Peer("byzfl==0.0.11", ("torch", "numpy", "scipy", "matplotlib", "seaborn"), True, "import byzfl"),
    "byzpy": Peer(
        "byzpy==0.1.4",
        ("torch", "numpy==2.0.2", "cloudpickle"),
        True,
        "import byzpy.aggregators.norm_wise, byzpy.aggregators.geometric_wise, byzpy.pre_aggregators",
    ),
    "torchjd": Peer("torchjd==0.18.0", ("torch", "numpy"), False, "import torchjd.aggregation"),
    "flwr": Peer("flwr==1.41.0", ("numpy",), False, "import flwr.server.strategy.aggregate, flwr.serverapp.strategy"),
    "flwr-simulation": Peer(
        "flwr[simulation]==1.41.0",
        ("torch", "numpy"),
        False,
        "import torch, ray, flwr.simulation, flwr.serverapp.strategy",
    ),
    "pfl": Peer("pfl==0.6.0", ("torch", "numpy"), False, "import pfl.model.pytorch, pfl.aggregate.simulate"),
}

RULES = ("byzfl", "byzpy", "flwr")  # those that benchmarks/rules.py compares


def interpreter(folder: Path, peer: str) -> Path:
    """Return the Python interpreter of a peer's environment."""
    return folder / peer / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


def pinned(package: str) -> str:
    """Return the requirement of `package` at the version of constraints.txt, or at any version."""
    lines = CONSTRAINTS.read_text(encoding="utf-8").splitlines()
    return next((line for line in lines if line.lower().startswith(package.lower() + "==")), package)


def make(folder: Path, name: str, torch_index: str | None) -> None:
    """Make or complete the environment of one peer, and run its probe.

    Raises:
        subprocess.CalledProcessError: pip or the probe failed; their output has the reason.
    """
    peer, python = PEERS[name], interpreter(folder, name)
    if not python.exists():
        venv.create(folder / name, with_pip=True)
    if "torch" in peer.first:  # alone and first: packages that require torch then accept this version
        _pip(python, pinned("torch"), *(("--index-url", torch_index) if torch_index else ()))
    _pip(python, *(pinned(package) for package in peer.first))
    _pip(python, peer.requirement, *(("--no-deps",) if peer.bare else ()))
    if peer.bare:
        _stand_in_for_torchvision(python)
    subprocess.run([str(python), "-c", peer.probe], check=True)


def _pip(python: Path, *arguments: str) -> None:
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", *arguments], check=True)


def _stand_in_for_torchvision(python: Path) -> None:
    ask = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = Path(subprocess.run(ask, check=True, capture_output=True, text=True).stdout.strip())
    (site / "torchvision.py").write_text(PLACEHOLDER, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("peers", nargs="*", help=f"some of {', '.join(PEERS)}; those of rules.py if not given")
    parser.add_argument("--torch-index", help="package index to take torch from")
    options = parser.parse_args(arguments)
    if unknown := set(options.peers) - set(PEERS):
        parser.error(f"peers are {', '.join(PEERS)}, got {', '.join(sorted(unknown))}")
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in options.peers or RULES:
        print(f"{PEERS[name].requirement} in {options.folder / name}", flush=True)
        make(options.folder, name, options.torch_index)


if __name__ == "__main__":
    main()
