"""Print the card of a run."""

from pathlib import Path

print(Path("run/model.md").read_text(encoding="utf-8"))
