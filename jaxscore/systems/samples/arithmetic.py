"""The value of an arithmetic expression that a model wrote, without running it as code."""

import ast
import operator
import warnings
from collections.abc import Callable

LONGEST = 1000  # characters
POWER_BITS = 4096  # of a whole-number power; above it the answer stays text

Number = int | float
BINARY: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def value(text: str) -> float | None:
    """What Python's numbers make of `text`: literals, `+ - * / // % **` and parentheses.

    None for everything else, for a value that a float cannot hold, and where there is none.
    """
    if len(text) > LONGEST:
        return None
    try:
        with warnings.catch_warnings():  # of "1/2or3", which is no arithmetic anyway
            warnings.simplefilter("ignore")
            tree = ast.parse(text.strip(), mode="eval")
        return float(_value(tree.body))
    except (ValueError, TypeError, ArithmeticError, SyntaxError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return +_value(operand)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _power(_value(left), _value(right))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in BINARY:
            return BINARY[type(op)](_value(left), _value(right))
    raise ValueError(f"{type(node).__name__} is no arithmetic")


def _power(base: Number, exponent: Number) -> Number:
    bits = base.bit_length() if isinstance(base, int) and isinstance(exponent, int) else 0
    if bits * abs(exponent) > POWER_BITS:  # 9**9**9 would take hours
        raise OverflowError("the power is too long to write out")
    return base**exponent
