"""Runs tests of Google Test from their source: straight lines of declarations, calls and expectations.

Each statement of C++ is rewritten as one of Python and executed with the names that an adapter gives it. A call of what
is under test begins a case; the expectations up to the next call decide it. A statement that cannot be rewritten or
executed is a failed case, so that nothing is left out unnoticed.
"""

import json
import math
import re
import types
from collections.abc import Callable, Iterator

from oracle import Case

_LITERAL = re.compile(
    r'R"\((?P<raw>.*?)\)"|"(?P<plain>(?:[^"\\\n]|\\.)*)"|\'(?P<char>(?:[^\'\\\n]|\\.)+)\'|//[^\n]*|/\*.*?\*/', re.DOTALL
)
_TEST = re.compile(r"^(TEST|TEST_F|TYPED_TEST)\(\s*(\w+),\s*(\w+)\) \{\n(.*?)\n\}", re.MULTILINE | re.DOTALL)
_CONSTANT = re.compile(r"^constexpr \w+ (\w+)(?:\[\])? = ([^;]+);", re.MULTILINE)
_DECLARATION = re.compile(r"(?:const )?(?!return )([\w:]+(?:<[\w:]+>)?)&? (\w+(?:, ?\w+)*)")
_INITIALIZED = re.compile(r"(?:const )?([\w:]+(?:<[\w:]+>)?)&? (\w+) = (.+)")
_REWRITINGS = [
    (r"numeric_limits<(\w+)>", r"numeric_limits.\1"),
    (r"::|->", "."),
    (r"&(?=\w)", ""),
    (r"!(?!=)", " not "),
    (r"\{", "["),
    (r"\}", "]"),
    (r"\(\w+\)\[", "["),  # a cast of a list
    (r"\btrue\b", "True"),
    (r"\bfalse\b", "False"),
]


class Variable:
    """What a C++ function writes to: `&output`."""

    def __init__(self, value=""):
        self.set(value)

    def set(self, value) -> None:
        """Assigns."""
        self._value = value

    def value(self):
        """What was assigned last."""
        return self._value

    data = value

    def clear(self) -> None:
        """Empties a string."""
        self._value = ""

    def length(self) -> int:
        """A string's."""
        return len(self._value)

    def append(self, *arguments) -> None:
        """`append(text)`, or `append(count, character)`."""
        self._value += arguments[0] if len(arguments) == 1 else arguments[0] * arguments[1]

    def __eq__(self, other):
        return self._value == plain(other)

    def __bool__(self):
        return bool(self._value)


def plain(value):
    """Returns the value of a variable, or the value itself."""
    return value.value() if isinstance(value, Variable) else value


class Status:
    """`absl::Status`.

    Args:
        code: name of a canonical code.
        text: the message.
        note: what differs although all is well.
    """

    def __init__(self, code: str = "OK", text: str = "", note: str = ""):
        self.code = code
        self.text = text
        self.note = note

    def message(self) -> str:
        """The message."""
        return self.text


class _Substring(str):
    """What `HasSubstr` looks for."""


class NotOursError(Exception):
    """Raised by a call that has no counterpart here; the message says why."""


class _Running:
    """Collects the cases of one test."""

    def __init__(self, test: str):
        self._test = test
        self.cases: list[list] = []  # name, failures, other wordings, reason for not running

    def begin(self, name: str = "") -> None:
        """Begins a case."""
        self.cases.append([f"{self._test} {name or len(self.cases) + 1}", [], [], ""])

    def expect(self, is_met: bool, otherwise: str) -> None:
        """Notes an expectation."""
        if not is_met:
            self._current()[1].append(otherwise)

    def expect_words(self, expected: str, message: str) -> None:
        """Notes an expectation of words within a message."""
        if not message:
            self._current()[1].append(f"no message, where {expected!r} was expected")
        elif expected not in message:
            self.note(f"{expected!r} is expected within {message!r}")

    def has_failed(self) -> bool:
        """Tells whether the current case has; the statements behind it may then fail for that reason."""
        return bool(self.cases and self.cases[-1][1])

    def skip(self, reason: str) -> None:
        """Says that the current case cannot run."""
        self._current()[3] = reason

    def note(self, words: str) -> None:
        """Notes what differs although an expectation is met."""
        if words:
            self._current()[2].append(words)

    def _current(self) -> list:
        if not self.cases:
            self.begin("before any call")
        return self.cases[-1]

    def results(self) -> Iterator[Case]:
        """Yields the cases."""
        for name, failures, words, reason in self.cases:
            if reason:
                yield Case(name, "not run", reason)
            elif failures:
                yield Case(name, "failed", "; ".join(failures))
            else:
                yield Case(name, "reworded" if words else "passed", "; ".join(words))


def run_tests(path: str, names: dict, variables: dict[str, Callable], calls: dict[str, Callable]) -> list[Case]:
    """Runs all tests of a file.

    Args:
        path: the file.
        names: what its statements use beside the names of Google Test and absl, with `.` for `::`.
        variables: type -> what makes the value of a declared variable; others hold text.
        calls: functions under test; each call begins a case. One whose name has a dot belongs to an object.

    Raises:
        ValueError: the number of tests found is not that of the file's macros.
    """
    with open(path, encoding="utf-8") as file:
        text = file.read()
    literals: list[str] = []
    text = _LITERAL.sub(lambda match: _placeholder(match, literals), text)
    tests = _TEST.findall(text)
    if len(tests) != len(re.findall(r"^(?:TEST|TEST_F|TYPED_TEST)\(", text, re.MULTILINE)):
        raise ValueError(f"{path}: the tests cannot be told apart.")
    constants = dict(_CONSTANT.findall(text))
    cases = []
    for kind, group, name, body in tests:
        parameters = ["ClassificationRequest", "RegressionRequest"] if kind == "TYPED_TEST" else [""]
        for parameter in parameters:
            running = _Running(" ".join(filter(None, [f"{group}.{name}", parameter])))
            scope = _scope(running, names, calls) | {"_s": literals}
            for constant, value in constants.items():
                scope[constant] = eval(_python(value), scope)
            _run_test(body.replace("TypeParam", parameter), scope, running, variables)
            cases += running.results()
    return cases


def _run_test(body: str, scope: dict, running: _Running, variables: dict[str, Callable]) -> None:
    for number, statement in enumerate(body.split(";"), 1):
        statement = " ".join(statement.partition("<<")[0].split())
        if not statement:
            continue
        count = len(running.cases)
        try:
            _run_statement(statement, scope, variables)
        except NotOursError as reason:
            running.skip(str(reason))
        except Exception as error:
            if len(running.cases) == count and not running.has_failed():
                running.begin(f"statement {number}")
            running.expect(False, f"not parsed, or failed: {statement[:200]}: {type(error).__name__}: {error}")


def _run_statement(statement: str, scope: dict, variables: dict[str, Callable]) -> None:
    if declared := _DECLARATION.fullmatch(statement):
        for name in declared[2].replace(" ", "").split(","):
            scope[name] = variables.get(declared[1], Variable)()
        return
    if initialized := _INITIALIZED.fullmatch(statement):
        value = eval(_python(initialized[3]), scope)
        scope[initialized[2]] = Variable(value) if isinstance(value, str) else value
        return
    exec(_python(statement), scope)


def _placeholder(match: re.Match, literals: list[str]) -> str:
    text = match["raw"]
    if text is None:
        quoted = match["plain"] if match["plain"] is not None else match["char"]
        if quoted is None:  # a comment
            return " "
        text = quoted.encode("ascii").decode("unicode_escape")
    literals.append(text)
    return f" _s[{len(literals) - 1}] "


def _python(expression: str) -> str:
    for pattern, replacement in _REWRITINGS:
        expression = re.sub(pattern, replacement, expression)
    expression = re.sub(r"(_s\[\d+\]) +(?=_s\[)", r"\1 + ", " ".join(expression.split()))
    return expression.strip()


def _scope(running: _Running, names: dict, calls: dict[str, Callable]) -> dict:
    def expect_ok(status):
        running.expect(status.code == "OK", f"{status.code}: {status.text}")
        running.note(status.note)

    def expect_true(value):
        running.expect(bool(value), "expected true")

    def expect_that(value, matcher):
        if isinstance(matcher, _Substring):
            running.expect_words(matcher, value)
        else:
            difference = matcher(value)
            running.expect(not difference, difference)

    def expect_equal(actual, expected):
        running.expect(plain(actual) == plain(expected), f"expected {plain(expected)!r}, found {plain(actual)!r}")

    scope = {
        "TF_EXPECT_OK": expect_ok,
        "EXPECT_TRUE": expect_true,
        "ASSERT_TRUE": expect_true,
        "EXPECT_FALSE": lambda value: running.expect(not value, "expected false"),
        "EXPECT_THAT": expect_that,
        "EXPECT_EQ": expect_equal,
        "HasSubstr": _Substring,
        "absl": types.SimpleNamespace(
            StrCat=lambda *pieces: "".join(str(plain(piece)) for piece in pieces),
            Substitute=lambda text, value: text.replace("$0", f"{value:.6g}"),
            IsInvalidArgument=lambda status: status.code == "INVALID_ARGUMENT",
            IsNotFound=lambda status: status.code == "NOT_FOUND",
            OkStatus=Status,
            string_view=lambda text, length: text[:length],
        ),
        "errors": types.SimpleNamespace(InvalidArgument=lambda text: Status("INVALID_ARGUMENT", text)),
        "std": types.SimpleNamespace(numeric_limits=_LIMITS),
    }
    scope |= names
    for name, function in calls.items():
        owner, _, method = name.rpartition(".")
        called = _beginning(running, function)
        if owner:
            held = scope.setdefault(owner, types.SimpleNamespace())
            setattr(held, method, called)
        else:
            scope[name] = called
    return scope


def _beginning(running: _Running, function: Callable) -> Callable:
    def call(*arguments):
        running.begin()
        return function(*arguments)

    return call


def _limits(smallest, largest) -> types.SimpleNamespace:
    return types.SimpleNamespace(min=lambda: smallest, max=lambda: largest)


_LIMITS = types.SimpleNamespace(
    uint64_t=_limits(0, 2**64 - 1), double=_limits(2.2250738585072014e-308, 1.7976931348623157e308)
)


def compare_json(actual: str | Variable, expected: str | Variable) -> Status:
    """Compares two JSON documents, numbers by value."""
    left, right = (json.loads(plain(text)) for text in (actual, expected))
    return Status() if _is_same(left, right) else Status("INVALID_ARGUMENT", f"expected {right}, found {left}")


def compare_json_texts(actual: str | Variable, expected: str | Variable) -> Status:
    """As `compare_json`, and notes numbers that are written in other digits."""
    left, right = (json.loads(plain(text), parse_float=str) for text in (actual, expected))
    status = compare_json(actual, expected)
    status.note = "" if repr(left) == repr(right) else f"{right} is expected, {left} is written"
    return status


def _is_same(left, right) -> bool:
    if isinstance(left, bool) or isinstance(right, bool) or not isinstance(left, int | float):
        if type(left) is not type(right):
            return False
        if isinstance(left, dict):
            return left.keys() == right.keys() and all(_is_same(left[key], right[key]) for key in left)
        if isinstance(left, list):
            return len(left) == len(right) and all(map(_is_same, left, right))
        return left == right
    return isinstance(right, int | float) and (left == right or (math.isnan(left) and math.isnan(right)))
