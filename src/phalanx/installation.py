"""This installation: the command that adds an extra, for messages that miss one, and where its data sets lie."""

import json
import shlex
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

NAME = "phalanx-fl"
DATA_DIR = "PHALANX_DATA"  # environment variable: the folder of the data sets, if no other is named


def optional(package: str, user: str, extra: str) -> Any:
    """Return a module of an optional package, which is imported.

    Args:
        package: the import path of the module.
        user: what needs it, for the message.
        extra: see `installation`.

    Raises:
        ModuleNotFoundError: the package is not installed, or is there and cannot be imported.
    """
    name = package.partition(".")[0]
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.partition(".")[0] == name:
            message = f"{user} needs the package {name}. Install it: {installation(extra)}."
            raise ModuleNotFoundError(message, name=name) from error
        raise broken(package, user, extra, error) from error
    except Exception as error:  # of any kind: the package is somebody else's
        raise broken(package, user, extra, error) from error


def broken(package: str, user: str, extra: str, error: Exception) -> ModuleNotFoundError:
    """Return the error of a package that is installed, and cannot be imported."""
    said = (str(error).splitlines() or [""])[0].rstrip(".")
    return ModuleNotFoundError(
        f"{user} needs the package {package}, which is there and cannot be imported: {type(error).__name__}: {said}. "
        f"Install versions that fit each other: {installation(extra)}.",
        name=package,
    )


def installation(extra: str) -> str:
    """Return the command that installs the extra from where Phalanx itself came: a checkout, a repository or an index.

    Pip writes that source to `direct_url.json`, unless it was an index (PEP 610).

    Args:
        extra: "dp", "flower", "huggingface", "images", "lora", "metrics", "nvflare", "onnx", "privacy", "ray",
            "tables" or "tasks".
    """
    try:
        recorded = distribution(NAME).read_text("direct_url.json")
    except PackageNotFoundError:  # not installed, but found on PYTHONPATH
        return _in_a_checkout(extra)
    if recorded is None:
        return f"pip install '{NAME}[{extra}]'"
    source = json.loads(recorded)
    url, place = source["url"], urlsplit(source["url"])
    if "vcs_info" in source:
        vcs = source["vcs_info"]
        revision = vcs.get("requested_revision")
        return f"pip install '{NAME}[{extra}] @ {vcs['vcs']}+{url}{f'@{revision}' if revision else ''}'"
    if place.scheme == "file" and not (path := Path(url2pathname(place.path))).exists():
        return _in_a_checkout(extra)
    if source.get("dir_info", {}).get("editable"):
        return f"pip install -e {shlex.quote(f'{path}[{extra}]')}"
    return f"pip install '{NAME}[{extra}] @ {url}'"


def _in_a_checkout(extra: str) -> str:
    return f"pip install '.[{extra}]' in a checkout of Phalanx"
