"""The libraries whose rules can be held against the cases."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from phalanx.errors import InfeasibleError
from phalanx.installation import installation
from phalanx.wording import shown


@dataclass(frozen=True)
class Library:
    """A library.

    Args:
        title: how it writes its name.
        module: the import path of the module that runs its rules, or a file.
        package: what must be installed.
        install: returns the command that installs it.
    """

    title: str
    module: str
    package: str = ""
    install: Callable[[], str] = lambda: ""


LIBRARIES = {
    "byzfl": Library(
        "ByzFL", "phalanx.conformance.byzfl_rules", "byzfl", lambda: "pip install byzfl torch torchvision seaborn"
    ),
    "byzpy": Library("ByzPy", "phalanx.conformance.byzpy_rules", "byzpy", lambda: "pip install byzpy"),
    "flower": Library("Flower", "phalanx.conformance.flower_strategies", "flwr", partial(installation, "flower")),
    "nvflare": Library(
        "NVFlare", "phalanx.conformance.nvflare_aggregators", "nvflare", partial(installation, "nvflare")
    ),
    "torchjd": Library("TorchJD", "phalanx.conformance.torchjd_aggregators", "torchjd", lambda: "pip install torchjd"),
    "phalanx": Library("Phalanx", "phalanx.conformance.phalanx_rules"),
}


def find(name: str) -> Library:
    """Return a library by its name, or by a file that runs its rules as `phalanx.conformance` describes.

    Raises:
        InfeasibleError: there is none of that name, or it is not installed here.
    """
    if name.endswith(".py"):
        if not Path(name).is_file():
            raise InfeasibleError(f"--library {shown(name)}: there is no such file.")
        return Library(Path(name).stem, str(Path(name).absolute()))
    if (library := LIBRARIES.get(name)) is None:
        raise InfeasibleError(
            f"--library must be {', '.join(LIBRARIES)}, or a file that runs the rules of another, got {shown(name)}."
        )
    if library.package and find_spec(library.package) is None:
        raise InfeasibleError(f"{library.title} is not installed here. Install it: {library.install()}.")
    return library
