"""Well-known models as their makers' config.json describes them, cut to what sizes follow from.

One JSON file per model, named as people call it; `_name_or_path` is its name on the Hugging Face
hub. Plans for these need neither a download nor a network.
"""

from importlib.resources import as_file, files
from typing import Any

from inlay.core.text_files import read_json_object


def known_models() -> tuple[str, ...]:
    """The names, sorted."""
    folder = files("inlay.core.known_models")
    return tuple(
        sorted(
            entry.name.removesuffix(".json")
            for entry in folder.iterdir()
            if entry.name.endswith(".json")
        )
    )


def known_config(name: str) -> dict[str, Any] | None:
    """The content of a known model's config.json; None for a name that is not known.

    Args:
        name: of `known_models`, or on the hub, in any case.
    """
    folder = files("inlay.core.known_models")
    for known in known_models():
        with as_file(folder.joinpath(f"{known}.json")) as file:
            config = read_json_object(file)
        if name.lower() in (known, config["_name_or_path"].lower()):
            return config
    return None
