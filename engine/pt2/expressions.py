"""Text in a ``.pt2`` that torch would evaluate: checked for what it may be, never evaluated.

Extents are written as ``Mul(Integer(2), Symbol('s6', positive=True))``, guards as
``L['x'].size()[0] >= 2``. torch hands both to Python. Here they are parsed as text; anything beyond
arithmetic is refused, and only the name of a plain symbol is used.
"""

import ast
from collections.abc import Callable

from braid.core.errors import ModelImportError

_MOST_CHARACTERS = 20_000
_FUNCTIONS = frozenset(
    {
        *("Symbol", "Integer", "Float", "Rational", "Add", "Mul", "Pow", "Max", "Min", "Mod"),
        *("FloorDiv", "CleanDiv", "CeilDiv", "ModularIndexing", "PythonMod", "Where", "Abs"),
        *("ToFloat", "TruncToInt", "FloorToInt", "CeilToInt", "IntTrueDiv", "FloatTrueDiv"),
        *("floor", "ceiling", "Piecewise", "ExprCondPair", "Eq", "Ne", "Lt", "Le", "Gt", "Ge"),
        *("Equality", "Unequality", "StrictLessThan", "LessThan", "StrictGreaterThan"),
        *("GreaterThan", "And", "Or", "Not", "Identity", "Heaviside", "PowByNatural"),
    }
)
_SYMBOL_OPTIONS = frozenset({"positive", "integer", "nonnegative", "real", "finite", "evaluate"})
_ARITHMETIC = (
    *(ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.operator, ast.unaryop, ast.boolop),
    *(ast.cmpop, ast.Load, ast.Expression, ast.keyword),
)


def symbol_name(text: str) -> str | None:
    """Name of a single symbol, None for other arithmetic; else ``ModelImportError``."""
    tree = _parsed(text, "extent", _is_extent)
    match tree:
        case ast.Call(func=ast.Name(id="Symbol"), args=[ast.Constant(value=str() as name)]):
            return name
        case ast.Name(id=name):
            return name
    return None


def check_guard(text: str) -> None:
    """Raise ``ModelImportError`` for more than a comparison of sizes of inputs and base tensors."""
    _parsed(text, "guard", _is_guard)


def _parsed(text: str, what: str, allowed: Callable[[ast.AST], bool]) -> ast.AST:
    shown = f"{what} {text[:80]!r}"
    if len(text) > _MOST_CHARACTERS:
        raise ModelImportError(f"{shown} has {len(text)} characters, at most {_MOST_CHARACTERS}")
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ModelImportError(f"{shown} is not an expression") from error
    for node in ast.walk(tree):
        if not isinstance(node, _ARITHMETIC) and not allowed(node):
            raise ModelImportError(f"{shown} is code, not arithmetic with sizes; it is never run")
    return tree


def _is_extent(node: ast.AST) -> bool:
    match node:
        case ast.Constant(value=str() as name):
            return name.isidentifier()
        case ast.Constant(value=bool() | int() | float()):
            return True
        case ast.Name(id=name):
            return name in _FUNCTIONS or name.isidentifier()
        case ast.Call(func=ast.Name(id=name), keywords=keywords):
            return name in _FUNCTIONS and all(k.arg in _SYMBOL_OPTIONS for k in keywords)
    return False


def _is_guard(node: ast.AST) -> bool:
    match node:
        case ast.Constant(value=bool() | int() | float() | str()):
            return True
        case ast.Name(id=name):
            return name in ("L", "Mod", "Max", "Min", "FloorDiv")
        case ast.Subscript():
            return True
        case ast.Attribute(attr="size" | "stride" | "storage_offset" | "_base"):
            return True
        case ast.Call(func=ast.Attribute(), args=[], keywords=[]):
            return True
        case ast.Call(func=ast.Name(id=name), keywords=[]):
            return name in ("Mod", "Max", "Min", "FloorDiv")
    return False
