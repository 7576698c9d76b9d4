"""The reference page of all error messages, from the source alone.

A message is the text of a call that makes an error. A value in it is shown as `{name}`, unless it is a text of the
code: one that a variable of the function or a constant holds, or that another function returns.
"""

import ast
import functools
import os
import pathlib
import re
from collections.abc import Iterable, Iterator

import docstrings
from docstrings import ROOT

# Which argument of a call is the message.
_ERRORS = {"WorkerLostError": 0, "UnavailableVersionError": 0, "InputError": 0, "Broken": 0, "_NotFound": 0}
_ERRORS |= {"ValueError": 0, "VerificationError": 0, "ServingError": 1, "invalid": 0, "wrong_shape": 0}
_ERRORS |= {"bad_rows.add": 1}

# Sections, each with its folders and files; one that is missing here fails the build.
_SECTIONS = {
    "Presets, sizes, files and models": [
        *("keras_bert", "keras_bert/presets", "keras_bert/encoder", "keras_bert/answers", "keras_bert/models"),
    ],
    "Vocabularies and tokenizers": ["keras_bert/tokenization", "keras_bert/vocabulary.py"],
    "Checkpoints of all formats": ["keras_bert/formats"],
    "Every command": ["tasks", "tasks/text", "tasks/report"],
    "Every training": ["tasks/engine"],
    "Every fine-tuning": ["tasks/fine_tuning"],
    "bert-quickstart": ["tasks/quickstart"],
    "bert-train-vocab, bert-create-pretraining-data, bert-pretrain, bert-adapt": [
        *("tasks/pretraining", "tasks/pretraining/data", "tasks/pretraining/train", "tasks/pretraining/adaptation"),
    ],
    "bert-classify": ["tasks/classify"],
    "bert-squad": ["tasks/squad"],
    "bert-swag": ["tasks/swag"],
    "bert-ner": ["tasks/ner"],
    "bert-score-words": ["tasks/score_words"],
    "bert-embed": ["tasks/embed"],
    "bert-features": ["tasks/features"],
    "bert-distill": ["tasks/distill"],
    "bert-convert": ["tasks/convert"],
    "bert-export": ["export", "export/graph", "export/heads", "export/targets", "export/verification"],
    "bert-serve": ["export/server", "export/server/runtime", "export/base_path.py"],
}
_INTRO = """\
# Error messages

Find the message that you see. *{name}* stands for a value, and [one | another] for one of several texts. A command
prints the message on one line and exits with status 1; in Python it is a `ValueError`. The message names the file, line
or flag, and says what to change. The [FAQ](../faq.md) says more about those met most often."""


def pages() -> dict[str, str]:
    """Returns the page as Markdown, by its path."""
    lines = [_INTRO, ""]
    section_of = {place: title for title, places in _SECTIONS.items() for place in places}
    messages_of = {title: set() for title in _SECTIONS}
    for path in _modules():
        name = str(path.relative_to(ROOT))
        if messages := set(_messages(path)):
            messages_of[section_of[name if name in section_of else os.path.dirname(name)]] |= messages
    for title, messages in messages_of.items():
        if messages:
            lines += [f"## {title}", "", *(f"- {_markdown(text)}" for text in sorted(messages, key=_order)), ""]
    return {"reference/errors.md": "\n".join(lines)}


def _modules() -> list[pathlib.Path]:
    return [path for room in ("keras_bert", "tasks", "export") for path in sorted((ROOT / room).rglob("*.py"))]


def _messages(path: pathlib.Path) -> Iterator[str]:
    """Yields the messages of a module, without those that only hand on another error's."""
    outer = _texts_of_all() | _texts_of_module(path)
    body = docstrings.parsed(path).body
    for scope in _functions(body) + [node for node in body if not isinstance(node, ast.FunctionDef | ast.ClassDef)]:
        texts = outer | _texts(ast.walk(scope), outer)
        for call in (node for node in ast.walk(scope) if isinstance(node, ast.Call)):
            name = ast.unparse(call.func)
            place = _ERRORS.get(name)
            if place is None or len(call.args) <= place:
                continue
            text = " ".join(_text(call.args[place], texts).split())
            is_part = name == "ValueError" and not re.match(r"[A-Z`]", text)  # Another message quotes it.
            if not is_part and re.search(r"[a-z]{2}", re.sub(r"\{.*?\}", "", text)):
                yield text


def _functions(body: list[ast.stmt]) -> list[ast.FunctionDef]:
    """The functions and methods of a module."""
    body = body + [node for cls in body if isinstance(cls, ast.ClassDef) for node in cls.body]
    return [node for node in body if isinstance(node, ast.FunctionDef)]


# === Texts ===

Texts = dict[str, list[ast.expr]]  # What a variable may hold, or a function return, by name.


def _texts(nodes: Iterable[ast.AST], outer: Texts) -> Texts:
    """The texts that are assigned to variables, or come from `outer`, without variables that may hold anything else."""
    texts = {}
    for node in nodes:
        if not isinstance(node, ast.Assign):
            continue
        target, value = node.targets[0], node.value
        pairs = [(target, value)]
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            pairs = zip(target.elts, value.elts, strict=False)
        for variable, held in pairs:
            if isinstance(variable, ast.Name):
                is_table = isinstance(held, ast.Dict)
                name = f"{variable.id}[]" if is_table else variable.id
                texts[name] = texts.get(name, []) + (held.values if is_table else [held])
    return {
        name: values for name, values in texts.items() if all(_is_text(expr) or _key(expr) in outer for expr in values)
    }


def _texts_of_module(path: pathlib.Path) -> Texts:
    """The texts that a module's constants hold, and that its functions return."""
    body = docstrings.parsed(path).body
    texts = _texts(body, {})
    for function in _functions(body):
        values = [node.value for node in ast.walk(function) if isinstance(node, ast.Return) and node.value]
        values = [value for value in values if ast.unparse(value) != "None"]
        if values and all(map(_is_text, values)):
            texts[f"{function.name}()"] = values
    return texts


@functools.cache
def _texts_of_all() -> Texts:
    """What modules may import of each other, without names that have two meanings."""
    texts, twice = {}, set()
    for path in _modules():
        new = {name: values for name, values in _texts_of_module(path).items() if not name.startswith("_")}
        twice |= texts.keys() & new.keys()
        texts |= new
    return {name: values for name, values in texts.items() if name not in twice}


def _key(node: ast.expr) -> str | None:
    """Names what an expression refers to: a variable, what a function returns, or what a table holds."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Call):
        return f"{ast.unparse(node.func).rpartition('.')[2]}()"
    return f"{ast.unparse(node.value)}[]" if isinstance(node, ast.Subscript) else None


def _is_text(node: ast.expr) -> bool:
    if isinstance(node, ast.IfExp):
        return _is_text(node.body) and _is_text(node.orelse)
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.Add) and (_is_text(node.left) or _is_text(node.right))
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _text(node: ast.expr, texts: Texts) -> str:
    """Returns a message as it is printed."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part, texts) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return _text(node.value, texts)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left, texts) + _text(node.right, texts)
    known, left = [], texts
    if isinstance(node, ast.IfExp):
        known = [node.body, node.orelse]
    elif name := _key(node):
        known, left = texts.get(name, []), {key: values for key, values in texts.items() if key != name}
    if not known:
        return f"{{{_name(node)}}}"
    shown = list(dict.fromkeys(filter(None, (_text(expr, left) for expr in known))))
    is_one = len(shown) == 1 and not isinstance(node, ast.IfExp)
    return shown[0] if is_one else f"[{' | '.join(shown)}]"


def _name(node: ast.expr) -> str:
    """Names a value by the variable that it comes from."""
    if isinstance(node, ast.Name):
        return node.id.strip("_").lower()
    if isinstance(node, ast.Attribute):
        return f"type of {_name(node.value)}" if node.attr == "__name__" else node.attr.strip("_").lower()
    if isinstance(node, ast.Call):
        if ast.unparse(node.func).endswith(".get") or ast.unparse(node.func) == "getattr":
            key = node.args[-1 if len(node.args) < 3 else 1]
            return key.value if isinstance(key, ast.Constant) else _name(key)
        of_values = [arg for arg in node.args if not isinstance(arg, ast.Constant)]
        return _name(of_values[-1] if of_values else node.func)
    if isinstance(node, ast.Subscript):
        is_key = isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str)
        return node.slice.value if is_key else _name(node.value)
    if isinstance(node, ast.BoolOp):
        return _name(node.values[0])
    if isinstance(node, ast.GeneratorExp | ast.ListComp):
        return _name(node.generators[0].iter)
    names = [child for child in ast.walk(node) if isinstance(child, ast.Name)]
    return _name(names[-1]) if names else "value"


def _order(text: str) -> str:
    return re.sub(r"\{.*?\}|[^a-z ]", "", text.lower()).strip()


def _markdown(text: str) -> str:
    segments = re.split(r"(?<![\w-])(--[a-z]\w*)", text)
    segments[1::2] = [f"`{flag}`" for flag in segments[1::2]]  # Prose would break a line after the hyphens.
    segments[::2] = [re.sub(r"([\\`*_\[\]<>|$~])", r"\\\1", segment) for segment in segments[::2]]
    return re.sub(r"((?:\{[\w \\]+\})+)", r"*\1*", "".join(segments))
