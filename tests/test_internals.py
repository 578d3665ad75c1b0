"""Private names of other packages: only those listed here are used, and pyproject.toml has an upper bound for each."""

import ast
import importlib
import pkgutil
import re
import tomllib
from itertools import chain
from pathlib import Path

import pytest

import phalanx

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
ALLOWED = {  # what is used of the internals of a package
    "torch": {
        "torch.nn.modules.batchnorm._BatchNorm",
        "torch.nn.modules.module._has_any_global_hook",
        "_backward_hooks",
        "_log_softmax_backward_data",
        "_post_accumulate_grad_hooks",
        "_version",
    },
    "numba": {"_cache", "numba.core.cgutils", "llvmlite.ir", "llvmlite.binding.get_host_cpu_features"},
    "flwr": {
        "flwr.supercore.error.ApiErrorCode",
        "flwr.supercore.error.FlowerError",
        "flwr.supercore.inflatable.inflatable_object.get_all_nested_objects",
        "flwr.supercore.inflatable.inflatable_object.get_object_body",
        "flwr.supercore.inflatable.inflatable_object.get_object_children_ids_from_object_content",
        "flwr.supercore.inflatable.inflatable_utils.inflate_object_from_contents",
        "flwr.supercore.inflatable.inflatable_utils.pull_objects",
        "flwr.supercore.cli.flower_superexec",
        "flwr.supercore.constant.TaskType",
        "flwr.supercore.logger.mirror_output_to_queue",
        "flwr.supercore.logger.restore_output",
        "flwr.supercore.superexec.executor.ExecutionSpec",
        "flwr.supercore.superexec.executor.LaunchResult",
        "flwr.supercore.superexec.executor.subprocess_executor.SubprocessExecutor",
        "flwr.supercore.superexec.run_superexec",
        "flwr.supercore.task_identity.TaskIdentity",
        "flwr.supercore.tls.validate_and_resolve_root_certificates",
    },
}
INTERNAL = ("numba.core.", "llvmlite.", "flwr.supercore.", "flwr.common.", "flwr.server.", "flwr.proto.")  # unmarked
DOCUMENTED = {"_thread", "numba.core.event"}  # in spite of their names
NAMED_TUPLES = {"_replace", "_asdict", "_fields", "_field_defaults", "_make"}  # documented in spite of their names
OURS = {"_drawn"}  # private names that one module of this library uses of another's


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


def imported(tree):
    """Return the full names of all that a module imports of other packages."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def attributes(tree):
    """Return the private attributes that a module uses of anything but `self`, `cls` and `super()`."""
    for node in ast.walk(tree):
        own = isinstance(node, ast.Attribute) and re.fullmatch(r"self|cls|super\(\)", ast.unparse(node.value))
        if isinstance(node, ast.Attribute) and is_private(node.attr) and not own:
            yield node.attr


@pytest.fixture(scope="module")
def used():
    found = dict[str, Path]()
    for path in SOURCES:
        tree = ast.parse(path.read_text())
        for name in imported(tree):
            private = any(map(is_private, name.split("."))) or f"{name}.".startswith(INTERNAL)
            if private and not name.startswith("phalanx."):
                found[name] = path
        found |= dict.fromkeys(set(attributes(tree)) - NAMED_TUPLES - OURS, path)
    return found


def test_internals_of_other_packages_are_used_only_where_it_is_known(used):
    known = set().union(DOCUMENTED, *ALLOWED.values())
    assert not {name: str(path.relative_to(ROOT)) for name, path in used.items() if name not in known}
    assert known <= used.keys(), "what is not used any more need not be allowed"


@pytest.mark.parametrize("package", ALLOWED)
def test_a_package_whose_internals_are_used_has_an_upper_bound(package):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    bounds = [line for line in wanted if re.match(rf"{package}\b", line)]
    assert bounds
    assert all("<" in bound for bound in bounds), bounds


MADE = {"_abc_impl", "_fields", "_field_defaults"}  # by Python, for each class


def overridden(kind):
    """Return the private names of a class that a base from elsewhere has as well."""
    own = ("phalanx.", "typing", "builtins")
    others = [base for base in kind.__mro__ if not base.__module__.startswith(own)]
    return {name for name in vars(kind) if is_private(name) and any(name in vars(base) for base in others)} - MADE


@pytest.mark.slow
def test_no_class_overrides_what_is_private_in_another_package():
    found = {}
    for module in pkgutil.walk_packages(phalanx.__path__, "phalanx."):
        try:
            values = vars(importlib.import_module(module.name)).values()
        except ImportError:  # an extra is not installed
            continue
        for kind in (value for value in values if isinstance(value, type) and value.__module__ == module.name):
            found |= {kind.__qualname__: names} if (names := overridden(kind) - NAMED_TUPLES) else {}
    assert not found
