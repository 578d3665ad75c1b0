"""Lines of code of some algorithms, attacks and tasks: without blank lines, comments, docstrings and imports.

python benchmarks/lines.py
"""

import ast
import io
import tokenize
from pathlib import Path

SOURCES = Path(__file__).parents[1]
PARTS = {  # file, and the classes and functions of it that count; () is all
    "FedAdam": ("src/phalanx/algorithms/server_optimizers.py", ("ServerOptimizer", "Adaptive", "FedAdam")),
    "SCAFFOLD": ("src/phalanx/algorithms/scaffold.py", ()),
    "Neurotoxin": ("src/phalanx/attacks/training.py", ("Neurotoxin", "Masking", "entries")),
    "Chameleon": ("src/phalanx/attacks/chameleon.py", ()),
    "PrivateSGD": ("src/phalanx/training/private_sgd.py", ()),
    "a task of your own": ("examples/own_task.py", ("Focal",)),
}


def lines(path: Path, names: tuple[str, ...]) -> int:
    """Return the number of lines with code."""
    text = path.read_text(encoding="utf-8")
    tree, skipped, counted = ast.parse(text), set[int](), set[int]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            skipped.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        if isinstance(node, ast.Import | ast.ImportFrom):
            skipped.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING):
            counted.update(range(token.start[0], token.end[0] + 1))
    parts = [node for node in tree.body if not names or getattr(node, "name", "") in names]
    inside = {line for node in parts for line in range(_first(node), (node.end_lineno or node.lineno) + 1)}
    return len((counted - skipped) & inside)


def _first(node: ast.stmt) -> int:
    """Return the line of the first decorator, or of the statement."""
    return min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])


if __name__ == "__main__":
    for name, (file, names) in PARTS.items():
        print(f"{name:<20} {lines(SOURCES / file, names):>4}  {file}")
