"""Checkpoints with wrong bytes in them: each is read, or refused by an InputError, at once and in little memory."""

import json
import math
import random
import shutil
import struct
import zipfile

import fuzzing
import hostile_reader
import pytest
import toy_checkpoints

NUMBERS = (0, 1, 127, 128, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**64 - 1)
ODD_VALUES = (None, True, -1, 0, 3, 10**9, 10**30, 1.5, math.nan, "", "x", [], {}, [[1]], {"a": 1})
COUNT, SPARE, SECONDS = 200, 200 * 2**20, 2


def varint(number):
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)


def flip(rng, data, place, length):
    return data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :]


def write_number(rng, data, place, length):
    """Puts a length in the place of others: as two, four or eight bytes, as a varint, or in digits."""
    number = rng.choice((*NUMBERS, len(data)))
    size, code = rng.choice(((2, "<H"), (4, "<I"), (8, "<Q")))
    written = rng.choice((struct.pack(code, number % 256**size), varint(number), b"%d" % number))
    return data[:place] + written + data[place + rng.choice((0, len(written))) :]


MUTATIONS = (
    flip,
    write_number,
    lambda rng, data, place, length: data[:place],
    lambda rng, data, place, length: data[:place] + data[place + length :],
    lambda rng, data, place, length: data[: place + length] * rng.randint(1, 3) + data[place:],
    lambda rng, data, place, length: data[:place] + rng.randbytes(length) + data[place + length :],
)


def change_value(rng, data):
    """Puts something odd in the place of a value of JSON."""
    root = json.loads(data)
    places, waiting = [], [root]
    while waiting:
        item = waiting.pop()
        keys = item if isinstance(item, dict) else range(len(item)) if isinstance(item, list) else ()
        places += [(item, key) for key in keys]
        waiting += [item[key] for key in keys]
    if places:
        item, key = rng.choice(places)
        item[key] = rng.choice(ODD_VALUES)
    return json.dumps(root).encode()


def mutate(rng, data):
    if data[:2] in (b"{\n", b"[\n", b'{"') and rng.random() < 0.7:
        return change_value(rng, data)
    for _ in range(rng.randint(1, 3)):
        if data:
            # Most of a file is weights. What says how they are to be read stands at either end.
            near_end = min(len(data), rng.choice((64, 1024, 2**20)))
            place = rng.randrange(near_end)
            place = rng.choice((place, len(data) - 1 - place))
            data = rng.choice(MUTATIONS)(rng, data, place, rng.randint(1, 64))
    return data


def repack(path, member, change):
    """Changes a member of a zip before it is compressed and summed up."""
    with zipfile.ZipFile(path) as file:
        contents = {name: file.read(name) for name in file.namelist()}
    with zipfile.ZipFile(path, "w") as file:
        for name, data in contents.items():
            file.writestr(name, change(data) if name == member else data)


def make_mutant(rng, source, target):
    """Copies a checkpoint, and changes one of its files; returns what is to be read of it, and its path."""
    if source.is_dir():
        shutil.copytree(source, target)
        file = rng.choice(sorted(path for path in target.rglob("*") if path.is_file()))
    else:
        target.mkdir()
        file = target = shutil.copy(source, target / source.name)
    if zipfile.is_zipfile(file) and rng.random() < 0.7:
        with zipfile.ZipFile(file) as archive:
            member = rng.choice(sorted(archive.namelist()))
        repack(file, member, lambda data: mutate(rng, data))
    else:
        member = ""
        file.write_bytes(mutate(rng, file.read_bytes()))
    is_tokenizer = "vocab" in f"{file.name} {member}" or "token" in f"{file.name} {member}"
    kinds = toy_checkpoints.kinds(source)
    return kinds[-1 if is_tokenizer and rng.random() < 0.7 else 0], target


@pytest.fixture(scope="module")
def ordinary(tmp_path_factory):
    return toy_checkpoints.make(tmp_path_factory.mktemp("ordinary"), *toy_checkpoints.MAKERS)


def test_each_is_read_or_refused_at_once(ordinary, tmp_path):
    rng = random.Random(11)
    sources = sorted(ordinary.iterdir())
    mutants = [
        make_mutant(rng, sources[number % len(sources)], tmp_path / str(number))
        for number in range(fuzzing.some(COUNT))
    ]
    answers = hostile_reader.read(toy_checkpoints.questions(ordinary), mutants, SPARE)
    fallen = [
        (path, *answer)
        for (_, path), answer in zip(mutants, answers, strict=True)
        if answer[0] not in ("", "InputError") or "MemoryError" in answer[1] or answer[2] > SECONDS
    ]
    assert not fallen, fallen[0]
    assert {error for error, *_ in answers} == {"", "InputError"}
