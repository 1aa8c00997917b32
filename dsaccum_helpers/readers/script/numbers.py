"""Arithmetic on abstract values: numbers that may be unknown, and losses that remember what divided them."""

from __future__ import annotations

import ast

from dsaccum_helpers.readers.script.values import (
    Constant,
    Count,
    Remainder,
    Sequence,
    Tensor,
    Unknown,
    Value,
    counted_over,
    engines_of,
    graph_of,
    number,
)
from dsaccum_helpers.trace import Division, Guard, Number, Term, is_count_name

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from collections.abc import Iterable

    from dsaccum_helpers.job import Source

    Guards = tuple[Guard, ...]


_LARGEST = 10**18


def arithmetic(node: ast.BinOp, left: Value, right: Value, source: Source, guards: Guards) -> Value:
    """``left op right``."""
    operator = node.op
    if isinstance(operator, ast.Mod):
        return Unknown() if isinstance(left, Constant) else Remainder(as_number(right, node.right))
    if isinstance(left, Tensor) or isinstance(right, Tensor):
        return _of_tensors(node, left, right, source, guards)
    if isinstance(left, Sequence) and (listed := _of_lists(operator, left, right)) is not None:
        return listed
    one, other = number(left), number(right)
    if one is not None and other is not None:
        result = _of_numbers(operator, one, other)
        return Count(result) if result is not None else _unknown(node, left, right)
    if isinstance(operator, ast.Div | ast.FloorDiv) and isinstance(left, Unknown) and _may_be_count(right):
        return divided(Tensor((), over=left.over), right, node.right, source, guards)
    if isinstance(operator, ast.Mult) and (made := _product(node, left, right)) is not None:
        return made
    result_unknown = _unknown(node, left, right)
    result_unknown.counter = any(isinstance(side, Unknown) and side.counter for side in (left, right))
    return result_unknown


def _of_lists(operator: ast.operator, left: Sequence, right: Value) -> Sequence | None:
    """``[False] * 3 + [True]``."""
    if isinstance(operator, ast.Add) and isinstance(right, Sequence):
        return Sequence([*left.items, *right.items][:200], left.open or right.open)
    times = right.number.known() if isinstance(right, Count) else None
    if isinstance(operator, ast.Mult) and times is not None and 0 < times <= 200:
        return Sequence((left.items * int(times))[:200], left.open)
    return None


def _unknown(node: ast.BinOp, left: Value, right: Value) -> Unknown:
    return Unknown(ast.unparse(node), counted_over(left, right))


def _may_be_count(value: Value) -> bool:
    return isinstance(value, Count | Unknown)


def _product(node: ast.BinOp, left: Value, right: Value) -> Value | None:
    """A product of which one factor is a number and the other one unknown: both are remembered by name."""
    factors = [as_number(side, part) for side, part in ((left, node.left), (right, node.right))]
    if factors[0] and factors[1] and any(factor and factor.counts for factor in factors):
        made = _of_numbers(ast.Mult(), factors[0], factors[1])
        if made is not None:
            return Count(made, ast.unparse(node))
    return None


def as_number(value: Value, node: ast.expr) -> Number | None:
    """The value as a Number: something unknown becomes a symbol of its own name."""
    if isinstance(value, Count):
        return value.number
    if isinstance(value, Unknown | Tensor):
        text = ast.unparse(node)
        name = value.name if is_count_name(value.name) and value.name.replace(".", "").isidentifier() else text
        return Number(1, {f"?{name}": 1}, value.over)
    return None


def _of_numbers(operator: ast.operator, one: Number, other: Number) -> Number | None:
    """None where the result is not known, is no real number, or is larger than any batch: squares grow fast."""
    try:
        made = _worked_out(operator, one, other)
    except OverflowError:
        return None
    return made if made is not None and isinstance(made.factor, int | float) and abs(made.factor) < _LARGEST else None


def _worked_out(operator: ast.operator, one: Number, other: Number) -> Number | None:
    over = one.over | other.over
    if isinstance(operator, ast.Mult):
        return Number(one.factor * other.factor, _powers(one, other, 1), over)
    if isinstance(operator, ast.Div | ast.FloorDiv) and other.factor:
        symbols = _powers(one, other, -1)
        if any(symbol.startswith("len:") for symbol in one.symbols) and not other.symbols:
            # by what a length was divided may say in which unit it is meant: kept apart
            return Number(one.factor, {**symbols, f"=divisor={other.factor}": -1}, over)
        quotient = one.factor / other.factor
        if isinstance(operator, ast.FloorDiv) and not symbols:
            quotient = one.factor // other.factor
        return Number(quotient, symbols, over)
    first, second = one.known(), other.known()
    if isinstance(operator, ast.Add | ast.Sub) and first is not None and second is not None:
        return Number(first + second if isinstance(operator, ast.Add) else first - second, {}, over)
    if isinstance(operator, ast.Pow) and first is not None and second is not None and abs(second) < 64:
        return Number(first**second if first else 0, {}, over)
    return None


def _powers(one: Number, other: Number, sign: int) -> dict[str, int]:
    powers = dict(one.symbols)
    for symbol, power in other.symbols.items():
        powers[symbol] = powers.get(symbol, 0) + sign * power
    return {symbol: power for symbol, power in powers.items() if power}


def _of_tensors(node: ast.BinOp, left: Value, right: Value, source: Source, guards: Guards) -> Value:
    operator = node.op
    if isinstance(operator, ast.Div | ast.FloorDiv) and isinstance(left, Tensor):
        if engines_of(right) and not isinstance(right, Count):
            return _joined(left, right, left, left.terms)
        return divided(left, right, node.right, source, guards)
    main, other, part = left, right, node.right
    # A gradient goes through the operand that is not detached: its summands count.
    if not isinstance(left, Tensor) or (left.detached and isinstance(right, Tensor)):
        main, other, part = right, left, node.left
    assert isinstance(main, Tensor)
    if isinstance(operator, ast.Mult):
        count = number(other)
        if count is not None and (inverse := _inverse(count)) is not None:
            return divided(main, Count(inverse), _divisor_of(part), source, guards)
        return _joined(left, right, main, main.terms)
    if isinstance(operator, ast.Add | ast.Sub):
        terms = [t for side in (left, right) if isinstance(side, Tensor) for t in side.terms]
        if any(isinstance(side, Unknown) for side in (left, right)):
            terms.append(Term(own=False))
        return _joined(left, right, main, terms)
    return _joined(left, right, main, (Term(),))


def _joined(left: Value, right: Value, main: Tensor, terms: Iterable[Term]) -> Tensor:
    """What two operands give together."""
    engines, detached = graph_of(left, right)
    made = Tensor(engines, terms, counted_over(left, right))
    made.detached, made.returned, made.gathered = detached, main.returned, main.gathered
    return made


def _inverse(count: Number) -> Number | None:
    """1 / count where that is the count again: multiplying by ``1 / n`` divides by ``n``."""
    if not count.symbols or not all(power == -1 for power in count.symbols.values()):
        return None
    return Number(1 / count.factor, dict.fromkeys(count.symbols, 1), count.over) if count.factor else None


def _divisor_of(node: ast.expr) -> ast.expr:
    return node.right if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) else node


def divided(tensor: Tensor, divisor: Value, node: ast.expr, source: Source, guards: Guards) -> Tensor:
    """The tensor with one more division in each of its terms."""
    division = Division(as_number(divisor, node), ast.unparse(node), source, guards)
    terms = [term._replace(divisions=(*term.divisions, division)) for term in tensor.terms]
    made = Tensor(tensor.engines, terms, tensor.over | counted_over(divisor))
    made.detached, made.returned, made.gathered = tensor.detached, tensor.returned, tensor.gathered
    return made
