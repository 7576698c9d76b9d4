"""Public classes and functions as Markdown, from the source alone: nothing is imported, so TensorFlow is not needed."""

import ast
import functools
import inspect
import pathlib
import re

ROOT = pathlib.Path(__file__).parents[2]
_MAX_LINE = 100  # Characters in a line of a signature.
_SECTIONS = ("Args", "Attributes", "Returns", "Yields", "Raises")
_SECTION = re.compile(rf"^({'|'.join(_SECTIONS)}):$")
_NAMES = re.compile(r"^    (?:\w+, )*\w+,$")  # The names of an item go on in the next line.
_ITEM = re.compile(r"^(\*{0,2}\w+(?:, \*{0,2}\w+)*)(?: \([^)]*\))?: ")


@functools.cache
def parsed(path: pathlib.Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def _classes() -> dict[str, tuple[ast.ClassDef, str]]:
    """Every class of `keras_bert` by name, with its module."""
    return {
        node.name: (node, _module(path))
        for path in sorted((ROOT / "keras_bert").rglob("*.py"))
        for node in parsed(path).body
        if isinstance(node, ast.ClassDef)
    }


def _module(path: pathlib.Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


# === Markdown ===


def markdown(docstring: str) -> str:
    """Turns a docstring of Google's form into Markdown: sections become lists, doctests become code blocks."""
    lines, out, section = inspect.cleandoc(docstring).splitlines(), [], None
    while lines:
        line = lines.pop(0)
        heading = _SECTION.match(line)
        if heading:
            section = heading[1]
            out += ["", f"**{'Arguments' if section == 'Args' else section}**", ""]
        elif line.lstrip().startswith(">>>"):
            block = [line]
            while lines and lines[0].strip():
                block.append(lines.pop(0))
            out += ["", "```python", *inspect.cleandoc("\n".join(block)).splitlines(), "```", ""]
        elif line.startswith("    ") and section:
            while _NAMES.match(line) and lines:
                line += f" {lines.pop(0).strip()}"
            item = _ITEM.match(line.strip()) if line[4:5] != " " else None
            if item:
                out.append(f"- `{item[1]}`: {line.strip()[len(item[0]) :]}")
            elif line[4:5] == " ":
                out.append(f"  {line.strip()}")
            else:
                out.append(line.strip())
        elif line.startswith("    "):
            block = [line]
            while lines and (
                lines[0].startswith("    ") or (not lines[0].strip() and lines[1:2] and lines[1][:4] == "    ")
            ):
                block.append(lines.pop(0))
            out += ["", "```", *inspect.cleandoc("\n".join(block)).splitlines(), "```", ""]
        else:
            if line.strip():
                section = None
            out.append(line)
    return mark_flags(re.sub(r"\n{3,}", "\n\n", "\n".join(out)).strip())


def mark_flags(text: str) -> str:
    """Marks flags in the prose as code."""
    segments = re.split(r"(```.*?```|`[^`]*`)", text, flags=re.DOTALL)
    segments[::2] = [re.sub(r"(?<![\w-])--[a-z]\w*(=[\w.,:/+-]*\w)?", r"`\g<0>`", segment) for segment in segments[::2]]
    return "".join(segments)


def signature(node: ast.FunctionDef, name: str, is_method: bool) -> str:
    """Returns a call with its arguments, types and defaults as they are written, each on a line if there are many."""
    arguments = _arguments(node.args)[1 if is_method else 0 :]
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    line = f"{name}({', '.join(arguments)}){returns}"
    if len(line) <= _MAX_LINE:
        return line
    return "\n".join([f"{name}(", *(f"    {argument}," for argument in arguments), f"){returns}"])


def _arguments(args: ast.arguments) -> list[str]:
    positional = [*args.posonlyargs, *args.args]
    defaults = [None] * (len(positional) - len(args.defaults)) + args.defaults
    arguments_of = functools.partial(ast.arguments, posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    made = [
        arguments_of(args=[arg], defaults=[default] if default else [])
        for arg, default in zip(positional, defaults, strict=True)
    ]
    if args.vararg or args.kwonlyargs:
        made.append(arguments_of(vararg=args.vararg))
    made += [
        arguments_of(kwonlyargs=[arg], kw_defaults=[default])
        for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True)
    ]
    if args.kwarg:
        made.append(arguments_of(kwarg=args.kwarg))
    texts = [(ast.unparse(arguments) or "*").removeprefix("*, ") for arguments in made]
    if args.posonlyargs:
        texts.insert(len(args.posonlyargs), "/")
    return texts


def _code(line: str) -> str:
    return f"```python\n{line}\n```"


# === What is described ===


def function_page(path: str, name: str) -> str:
    """Returns the section of a function of a module."""
    module = ROOT / path
    node = next(child for child in parsed(module).body if isinstance(child, ast.FunctionDef) and child.name == name)
    full = f"{_module(module)}.{name}"
    return f"## {full}\n\n{_code(signature(node, name, False))}\n\n{markdown(ast.get_docstring(node) or '')}\n"


def class_page(name: str) -> str:
    """Returns the page of a public class of `keras_bert`: itself, and the methods that it has from this project."""
    if name not in _classes():
        return _function_of_package(name)
    methods, order = {}, _ancestors(name)
    for cls in order:
        for node in _classes()[cls][0].body:
            if isinstance(node, ast.FunctionDef):
                methods.setdefault(node.name, node)
    bases = ", ".join(f"`{ast.unparse(base)}`" for base in _classes()[name][0].bases)
    lines = [f"# {name}", ""]
    if "__init__" in methods:
        lines += [_code(signature(methods["__init__"], f"keras_bert.{name}", True)), ""]
    if bases:
        lines += [f"Bases: {bases}.", ""]
    documentation = next(
        (ast.get_docstring(_classes()[cls][0]) for cls in order if ast.get_docstring(_classes()[cls][0])), ""
    )
    lines += [markdown(documentation), ""]
    for method, node in methods.items():
        text = ast.get_docstring(node)
        if method.startswith("_") or not text:
            continue
        kinds = {ast.unparse(decorator) for decorator in node.decorator_list}
        lines += [f"## {method}", ""]
        if "property" in kinds:
            lines += [markdown(text), ""]
        else:
            prefix = f"{name}." if "classmethod" in kinds else ""
            lines += [_code(signature(node, prefix + method, "staticmethod" not in kinds)), "", markdown(text), ""]
    return "\n".join(lines)


def _ancestors(name: str) -> list[str]:
    """The class and its bases of this project, nearest first."""
    names = [name]
    for base in _classes()[name][0].bases:
        last = ast.unparse(base).rpartition(".")[2]
        if last in _classes() and last != name:
            names += [ancestor for ancestor in _ancestors(last) if ancestor not in names]
    return names


def _function_of_package(name: str) -> str:
    for path in sorted((ROOT / "keras_bert").rglob("*.py")):
        if any(isinstance(node, ast.FunctionDef) and node.name == name for node in parsed(path).body):
            section = function_page(str(path.relative_to(ROOT)), name).partition("\n")[2]
            return f"# {name}\n{section.replace(f'{name}(', f'keras_bert.{name}(', 1)}"
    raise ValueError(f"keras_bert.{name} is defined nowhere")
