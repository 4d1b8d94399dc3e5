"""The runner of the ``cases`` grader in the box: calls functions and reports their values. Standard library only.

It knows the inputs but no expected values, so a submission that takes it over (they share a process) still has to
compute the answers. The host applies ``encode`` to the expected values.
"""

import json
import os
import signal
import sys
import types

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing in every box would cost more than a grade
    from typing import Any

MAX_VALUE = 1 << 16
"""Maximum characters of the encoding of one value."""


class OutOfTime(BaseException):
    """Raised by the alarm; not an Exception, so that an ``except Exception`` in the submission does not stop it."""


def encode(value: "Any") -> str:
    """Return the canonical text of a plain value by its exact type: 1, 1.0 and True differ, lists and tuples too.

    The order of a dict does not matter. Raises TypeError for anything else, also for subclasses of plain types.
    """
    kind = type(value)
    if value is None or kind is bool or kind is int or kind is str:
        return json.dumps(value)
    if kind is float:
        return f"f{value!r}"
    if kind is list or kind is tuple:
        inner = ",".join([encode(item) for item in value])
        return f"[{inner}]" if kind is list else f"({inner})"
    if kind is dict:
        pairs = [f"{encode(key)}:{encode(item)}" for key, item in dict.items(value)]
        return "{" + ",".join(sorted(pairs)) + "}"
    if kind is set or kind is frozenset:
        return ("s{" if kind is set else "z{") + ",".join(sorted([encode(i) for i in value])) + "}"
    if kind is bytes:
        return f"b{value.hex()}"
    raise TypeError(f"not a plain value: {kind.__name__}")


def run_cases(request: dict) -> dict:
    """Run ``modules`` of a request (``{module: {path, function, inputs}}``).

    Returns ``{module: [[encoding or None, error or None], ...]}``.
    """
    results: dict = {}
    signal.signal(signal.SIGVTALRM, _stop)
    for name, wanted in request["modules"].items():
        answers = results[name] = []
        try:
            # The interval repeats the alarm in case the submission caught the first one.
            signal.setitimer(signal.ITIMER_VIRTUAL, request["seconds"], 0.05)
            try:
                _answer(name, wanted, answers)
            finally:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        except BaseException as error:
            missing = len(wanted["inputs"]) - len(answers)
            answers += [[None, type(error).__name__]] * missing
    return results


def _answer(name: str, wanted: dict, answers: list) -> None:
    module = types.ModuleType(name)
    module.__file__ = wanted["path"]
    with open(wanted["path"], "rb") as file:
        code = compile(file.read(), wanted["path"], "exec", dont_inherit=True)
    sys.modules[name] = module
    exec(code, module.__dict__)
    function = getattr(module, wanted["function"])
    for inputs in wanted["inputs"]:
        try:
            text = encode(function(*inputs))
            answers.append([text, None] if len(text) <= MAX_VALUE else [None, "TooLarge"])
        except OutOfTime:
            raise
        except BaseException as error:
            answers.append([None, type(error).__name__])


def _stop(signum: int, frame: object) -> None:
    raise OutOfTime


def main() -> None:
    with os.fdopen(0, "rb", closefd=False) as stdin:
        request = json.loads(stdin.read())
    dumps, write, leave = json.dumps, os.write, os._exit
    channel = os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    sys.dont_write_bytecode = True
    sys.path.append(os.getcwd())  # after the standard library, which a submission must not shadow
    nonce = request.pop("nonce")
    results = run_cases(request)
    left = f"\n{nonce} {dumps(results)}\n".encode()
    while left:
        left = left[write(channel, left) :]
    leave(0)  # no atexit handler, no thread, no buffered output comes after the answer
