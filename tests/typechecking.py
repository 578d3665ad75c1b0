"""Types and shapes of the package, checked at each call while the tests run.

The import hook of jaxtyping checks the same. It compiles two checks of each function at import, binds the signature at
each call and checks the arguments twice: that took three quarters of the processor time of the tests. Here one check of
a function is compiled at its first call, and covers arguments and result. In each test the first calls of a function
are checked, and of the others, as in a loop, one in twenty.
"""

import ast
import sys
from dataclasses import is_dataclass
from functools import wraps
from importlib.machinery import PathFinder, SourceFileLoader
from inspect import isgeneratorfunction
from types import FunctionType, SimpleNamespace
from typing import Any, get_args, get_type_hints

from beartype import BeartypeConf, beartype
from jaxtyping import AbstractArray, TypeCheckError, config, jaxtyped

# An integer is allowed where a float is.
against_types = beartype(conf=BeartypeConf(is_pep484_tower=True, violation_type=TypeCheckError))
SHAPES = jaxtyped("context")  # in which the letters of shapes have one value each
CHECK = "__import__('typechecking').checked"
ALL, EVERY = 5, 20  # calls of a function that are checked in each test; and of how many others one is
SUFFIX = ".checked-1.pyc"  # of compiled modules; to be counted up when `Checks` changes


tests = 0  # that have begun


def begin():
    """Begin a test, in which the first calls of each function are checked."""
    global tests  # noqa: PLW0603
    tests += 1


def checked(made):
    """Return the function with its arguments and result checked, or the dataclass with its arguments checked."""
    if isinstance(made, type):
        if is_dataclass(made) and not hasattr(made.__init__, "__wrapped__"):
            made.__init__ = checked(made.__init__)
        return made
    if not made.__annotations__:
        return made
    sure, shaped, calls, test = None, False, 0, 0

    @wraps(made)
    def call(*arguments, **options):
        nonlocal sure, shaped, calls, test
        __tracebackhide__ = True
        calls, test = (calls + 1, test) if test == tests else (1, tests)
        if (calls > ALL and calls % EVERY) or config.jaxtyping_disable:
            return made(*arguments, **options)
        if sure is None:
            typed = with_types(made)
            if isgeneratorfunction(made):  # whose shapes must not be mixed with those of who draws from it
                sure = jaxtyped(typed, typechecker=against_types)
            else:
                shaped = any(map(has_shape, typed.__annotations__.values()))
                sure = against_types(typed)
        if not shaped:
            return sure(*arguments, **options)
        with SHAPES:
            return sure(*arguments, **options)

    return call


def with_types(made):
    """Return the function with types for annotations; with `Any` for what only a static checker knows."""
    same = FunctionType(made.__code__, made.__globals__, made.__name__, made.__defaults__, made.__closure__)
    same.__kwdefaults__, same.__module__, same.__qualname__ = made.__kwdefaults__, made.__module__, made.__qualname__
    same.__annotations__ = {name: type_of(hint, made.__globals__) for name, hint in made.__annotations__.items()}
    return same


def type_of(hint, names):
    try:
        return get_type_hints(SimpleNamespace(__annotations__={"it": hint}), names, include_extras=True)["it"]
    except Exception:  # the names, or what is made of them, are not there at run time
        return Any


def has_shape(hint):
    """Return whether a type has a shape somewhere, or may have one: whether it is not made of ordinary classes only."""
    if parts := get_args(hint):
        return any(map(has_shape, parts))
    return not (hint in (None, Any, ...) or (isinstance(hint, type) and not issubclass(hint, AbstractArray)))


class Checks(ast.NodeTransformer):
    """Decorates each class and function with `checked`, except for those with `no_type_check`."""

    def visit_ClassDef(self, node):
        return self.decorated(node, 0)  # outermost: after `dataclass`

    def visit_FunctionDef(self, node):
        return self.decorated(node, len(node.decorator_list))

    def decorated(self, node, place):
        if any(ast.unparse(decorator) == "no_type_check" for decorator in node.decorator_list):
            return node
        self.generic_visit(node)
        check = ast.copy_location(ast.parse(CHECK, mode="eval").body, node)
        node.decorator_list.insert(place, check)
        return node


class CheckedLoader(SourceFileLoader):
    """Compiles a module with checks, and keeps that apart from the module without."""

    def source_to_code(self, data, path, **options):
        tree = Checks().visit(ast.parse(data, path))
        return super().source_to_code(ast.fix_missing_locations(tree), path, **options)

    def get_data(self, path):
        return super().get_data(path.replace(".pyc", SUFFIX))

    def set_data(self, path, data, **options):
        super().set_data(path.replace(".pyc", SUFFIX), data, **options)


class CheckedFinder(PathFinder):
    """Finds the modules of a package, to be loaded with checks."""

    def __init__(self, package):
        self.package = package

    def find_spec(self, name, path=None, target=None):
        spec = super().find_spec(name, path, target) if f"{name}.".startswith(f"{self.package}.") else None
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = CheckedLoader(spec.loader.name, spec.loader.path)
            return spec
        return None


def check(package):
    """Check the types and shapes of a package from its import on."""
    if any(isinstance(finder, CheckedFinder) and finder.package == package for finder in sys.meta_path):
        return
    if package in sys.modules:
        raise RuntimeError(f"{package} is imported already, without checks.")
    sys.meta_path.insert(0, CheckedFinder(package))
