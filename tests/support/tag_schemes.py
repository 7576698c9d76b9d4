"""Writes entities as the tags of a scheme, to be read back."""


def write_tags(entities, length: int, scheme: str) -> list[str]:
    """Returns the tags of a sentence in "iob1", "iob2" or "bilou"; the entities are sorted."""
    tags, before = ["O"] * length, (None, None)
    for name, start, end in entities:
        prefixes = ["I"] * (end - start)
        if scheme != "iob1" or before == (name, start):
            prefixes[0] = "B"
        if scheme == "bilou":
            prefixes[-1] = "U" if len(prefixes) == 1 else "L"
        tags[start:end] = [f"{prefix}-{name}" for prefix in prefixes]
        before = (name, end)
    return tags
