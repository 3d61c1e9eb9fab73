"""MBPP+'s inputs as its functions expect them: JSON has no tuples, sets and complex numbers.

Which task needs which conversion is a list by task id, that of EvalPlus for release v0.2.0. A row
that can't be converted is refused.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ddtree.evals.suites.fields import Record, shown

Row = list[Any]
Convert = Callable[[Row], Sequence[Any]]


def converted(record: Record, rows: Sequence[Row]) -> tuple[tuple[Any, ...], ...]:
    """The inputs of a task, `rows[i]` being the arguments of a call as in JSON.

    ConfigError names the task where a row has not the form that its conversion needs, and a task
    id that ends in no number.
    """
    try:
        number = int(record.text("task_id").rsplit("/", 1)[-1])
    except ValueError:
        raise record.refused(f"task_id: expected Mbpp/N, got {record.text('task_id')!r}") from None
    convert = _BY_TASK.get(number, tuple)
    inputs = []
    for row in rows:
        try:
            inputs.append(tuple(convert(row)))
        except (TypeError, ValueError, AttributeError) as error:
            raise record.refused(
                f"Mbpp/{number}: an input has another form than in release v0.2.0: {shown(row)} "
                f"({error})"
            ) from None
    return tuple(inputs)


def _tuples(values: Iterable[Any]) -> Row:
    """Each argument of a row, or each item of a list, is a tuple."""
    return [tuple(value) for value in values]


def _lists_of_tuples(row: Row) -> Row:
    return [_tuples(argument) for argument in row]


def _tuples_of_tuples(row: Row) -> Row:
    return [tuple(_tuples(argument)) for argument in row]


def _list_of_tuples_first(row: Row) -> Row:
    first, second = row
    return [_tuples(first), second]


def _tuple_first(row: Row) -> Row:
    first, second = row
    return [tuple(first), second]


def _tuple_second(row: Row) -> Row:
    first, second = row
    return [first, tuple(second)]


def _tuple_first_of_three(row: Row) -> Row:
    first, second, third = row
    return [tuple(first), second, third]


def _tuple_with_tuples(row: Row) -> Row:
    """Lists inside the tuple are tuples, other items stay."""
    (argument,) = row
    return [tuple(tuple(item) if isinstance(item, list) else item for item in argument)]


def _tuples_throughout(row: Row) -> Row:
    return [_deep_tuple(argument) for argument in row]


def _sets_or_dict(row: Row) -> Row:
    """What is empty is a dict: the task asks whether all dicts of a list are empty."""
    (argument,) = row
    return [[set(item) if isinstance(item, list) and item else {} for item in argument]]


def _dict_of_tuples_first(row: Row) -> Row:
    first, *rest = row
    return [{key: tuple(value) for key, value in first.items()}, *rest]


def _float_and_complex(row: Row) -> Row:
    first, second = row
    return [float(first), complex(second)]


def _complex_alone(row: Row) -> Row:
    (argument,) = row
    return [complex(argument)]


def _deep_tuple(value: Any) -> Any:
    return tuple(map(_deep_tuple, value)) if isinstance(value, list) else value


_TASKS: tuple[tuple[Convert, tuple[int, ...]], ...] = (
    (
        _tuples,
        (
            *(2, 116, 132, 143, 222, 261, 273, 394, 399, 421, 424),
            *(429, 470, 560, 579, 596, 616, 630, 726, 740, 744, 809),
        ),
    ),
    (
        _lists_of_tuples,
        (63, 64, 70, 94, 120, 237, 272, 299, 400, 409, 417, 438, 473, 614, 780),
    ),
    (_list_of_tuples_first, (75, 413, 444, 753)),
    (_tuple_second, (106, 750)),
    (_sets_or_dict, (115,)),
    (_float_and_complex, (124,)),
    (_tuple_first, (250, 405, 446, 617, 720, 763, 808)),
    (_tuples_of_tuples, (259, 401, 445)),
    (_tuple_with_tuples, (278,)),
    (_tuple_first_of_three, (307,)),
    (_dict_of_tuples_first, (722,)),
    (_complex_alone, (252,)),
    (_tuples_throughout, (580, 615, 791)),
)
_BY_TASK: Mapping[int, Convert] = {
    number: convert for convert, numbers in _TASKS for number in numbers
}
