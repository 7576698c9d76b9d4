"""Reads protocol buffers in text format, in which TensorFlow Serving takes its settings. Imports no TensorFlow."""

from collections.abc import Mapping

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf.message import Message

from keras_bert.errors import InputError
from keras_bert.files import open_file

_PACKAGE = "tensorflow.serving"
_KINDS = descriptor_pb2.FieldDescriptorProto


def read_text_message(path: str, message: Message, expected: str) -> Message:
    """Reads a file into `message` and returns it.

    Args:
        path: the file.
        message: an empty message of the right class.
        expected: the right content of the file in words, for errors.

    Raises:
        InputError: the file cannot be read, or is no such message.
    """
    try:
        with open_file(path) as file:
            return text_format.Parse(file.read().decode("utf-8"), message)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}). Check the path.") from error
    except (text_format.ParseError, UnicodeDecodeError) as error:
        received = " ".join(str(error).split())[:200]
        parsing = f"Error parsing text-format {message.DESCRIPTOR.full_name}"  # TensorFlow Serving's words.
        raise InputError(f"{path}: {parsing}: expected {expected}. Received: {received}") from error


def declare_message(name: str, fields: Mapping) -> type[Message]:
    """Returns the class of a message that tensorflow-serving-api lacks. It can be read as text, not as bytes.

    Args:
        name: the message's name, such as `BatchingParameters`.
        fields: name of a field -> `bool`, `int`, `str`, a list with one of these for a repeated field, or the fields
            of a nested message.
    """
    file = descriptor_pb2.FileDescriptorProto(name=f"{name}.proto", package=_PACKAGE, syntax="proto3")
    _declare(file.message_type.add(name=name), f".{_PACKAGE}.{name}", fields)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))


def _declare(message: descriptor_pb2.DescriptorProto, path: str, fields: Mapping) -> None:
    for number, (name, kind) in enumerate(fields.items(), 1):
        field = message.field.add(name=name, number=number, label=_KINDS.LABEL_OPTIONAL)
        if isinstance(kind, Mapping):
            field.type, field.type_name = _KINDS.TYPE_MESSAGE, f"{path}.{name}"
            _declare(message.nested_type.add(name=name), field.type_name, kind)
            continue
        if isinstance(kind, list):
            field.label, kind = _KINDS.LABEL_REPEATED, kind[0]
        field.type = {bool: _KINDS.TYPE_BOOL, int: _KINDS.TYPE_INT64, str: _KINDS.TYPE_STRING}[kind]
