"""Reads protocol buffers in text format, in which TensorFlow Serving takes its settings. Imports no TensorFlow."""

from google.protobuf import text_format
from google.protobuf.message import Message

from keras_bert.errors import InputError


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
        with open(path, encoding="utf-8") as file:
            return text_format.Parse(file.read(), message)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}). Check the path.") from error
    except (text_format.ParseError, UnicodeDecodeError) as error:
        received = " ".join(str(error).split())[:200]
        raise InputError(f"{path}: expected {expected}. Received: {received}") from error
