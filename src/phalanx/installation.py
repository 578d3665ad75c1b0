"""This installation: the command that adds an extra, for messages that miss one, and where its data sets lie."""

import json
import shlex
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

NAME = "phalanx-fl"
DATA_DIR = "PHALANX_DATA"  # environment variable: the folder of the data sets, if no other is named


def installation(extra: str) -> str:
    """Return the command that installs the extra from where Phalanx itself came: a checkout, a repository or an index.

    Pip writes that source to `direct_url.json`, unless it was an index (PEP 610).

    Args:
        extra: "dp", "flower", "huggingface", "lora", "metrics", "onnx", "privacy", "ray", "tables" or "tasks".
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
