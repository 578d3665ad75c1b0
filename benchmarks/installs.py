"""What a wheel of Phalanx needs in clean environments, bare and with each extra: seconds, megabytes, does it work.

    python benchmarks/installs.py dist/*.whl [--only EXTRA ...]

Prints a table in Markdown.  The environments are temporary, for the Python that runs this.  They find the torch of this
Python, or install one.  Each extra is installed over the bare environment, and its megabytes come on top.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

TABLE = "a,b,label\n" + "".join(f"{k % 7},{k % 3},{'yes' if k % 2 else 'no'}\n" for k in range(60))
WORKS = {  # what an extra allows, and nothing else: a command of `phalanx`, or code; `images` comes with matplotlib
    "": "run --clients 3 --model.hidden [] --until.steps 1 --folder run",
    "dp": "run --clients 3 --until.steps 1 --training PrivateSGD",
    "flower": "flower certificates localhost",
    "huggingface": "import datasets",
    "lora": "import peft",
    "metrics": "import prometheus_client",
    "nvflare": "import phalanx.nvflare",
    "onnx": "export run --format onnx --out model.onnx",
    "privacy": "import dp_accounting",
    "ray": "import phalanx.ray, ray",
    "tables": "run --clients 3 --until.steps 1 --data CSV --data.path table.csv --data.label label",
    "tasks": "import torchmetrics",
}


OF_CUDA = ("nvidia", "nvidia_*.dist-info", "cuda_*.dist-info", "cuda", "triton", "triton-*.dist-info")  # torch's build


class Environment:
    """A virtual environment that sees the packages of others.

    Args:
        folder: where it is made.
        others: folders of packages.
    """

    def __init__(self, folder: Path, *others: Path) -> None:
        venv.create(folder, with_pip=True)
        self.python = folder / "bin" / "python"
        self.packages = next((folder / "lib").glob("python3.*")) / "site-packages"
        (self.packages / "others.pth").write_text("".join(f"{other}\n" for other in others))

    def install(self, *what: str) -> tuple[float, float]:
        """Install by pip; return the seconds, and the megabytes that came."""
        before, begun = _megabytes(self.packages), time.perf_counter()
        command = [self.python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *what]
        subprocess.run(command, check=True)
        return time.perf_counter() - begun, _megabytes(self.packages) - before

    def works(self, what: str, folder: Path) -> str:
        """Try a command of `phalanx`, or code; return "" or the last line of what it says."""
        code = what.startswith("import ")
        command = [self.python, "-P", *(["-c", what] if code else ["-m", "phalanx", *what.split()])]
        environment = {**os.environ, "PYTHONPATH": ""}
        done = subprocess.run(command, check=False, cwd=folder, capture_output=True, text=True, env=environment)
        return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["nothing"])[0]


def main() -> int:
    """Print the table; return 1 if something does not work."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--only", nargs="*", choices=[*filter(None, WORKS)], help="extras; all if not given")
    given = parser.parse_args()
    try:
        import torch  # noqa: PLC0415

        there = [Path(torch.__file__).parents[1]]
    except ImportError:
        there = []
    wheel, failed = given.wheel.absolute(), 0
    with tempfile.TemporaryDirectory() as name:
        here = Path(name)
        (here / "table.csv").write_text(TABLE)
        torch_alone = here / "torch"
        torch_alone.mkdir()
        bare = Environment(here / "bare", *_torch_alone(there, torch_alone))
        print("| extra | seconds | MB | works | without it |\n| --- | --- | --- | --- | --- |")
        for extra in ["", *(given.only or filter(None, WORKS))]:
            own = Environment(here / extra, torch_alone, bare.packages) if extra else bare
            without = own.works(WORKS[extra], here) if extra else ""
            seconds, size = own.install(f"{wheel}[{extra}]" if extra else str(wheel))
            wrong = own.works(WORKS[extra], here)
            failed += bool(wrong) or bool(extra and not without)
            print(
                f"| {extra or 'none'} | {seconds:.0f} | {size:.0f} | {wrong or 'yes'} | {without or '-'} |", flush=True
            )
    return 1 if failed else 0


def _torch_alone(packages: list[Path], folder: Path) -> list[Path]:
    """Link torch, and nothing else, of a folder of packages into another; return the second if there is one."""
    for place in packages:
        for path in (
            *place.glob("torch"),
            *place.glob("torch-*.dist-info"),
            *place.glob("torchgen"),
            *place.glob("functorch"),
            *(each for name in OF_CUDA for each in place.glob(name)),
        ):
            (folder / path.name).symlink_to(path)
    return [folder]


def _megabytes(folder: Path) -> float:
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir()) / 1e6


if __name__ == "__main__":
    sys.exit(main())
