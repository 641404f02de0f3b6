"""Remarks of the server about models, beside what the store says of them.

model repository ──note──> Remarks ──> messages of versions, repository index
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from braid.server.store.records import ModelVersion

WHOLE_MODEL = 0
"""Version of a remark that is about no version in particular."""


class Remarks:
    """Why files of a model repository do not serve, by name and version."""

    def __init__(self) -> None:
        self._texts: dict[tuple[str, int], str] = {}

    def note(self, name: str, version: int, text: str) -> bool:
        """Set the remark on a version, or on a whole model; "" removes it.

        Returns bool: it is another one than before.
        """
        if self._texts.get((name, version), "") == text:
            return False
        self._texts[name, version] = text
        if not text:
            del self._texts[name, version]
        return True

    def all(self) -> Mapping[tuple[str, int], str]:
        return dict(self._texts)

    def over(self, model: ModelVersion) -> ModelVersion:
        """Return a version with the remarks on it as its message, if there are any."""
        found = (self._texts.get((model.name, each)) for each in (model.version, WHOLE_MODEL))
        texts = list(filter(None, found))
        return replace(model, message="; ".join(texts)) if texts else model
