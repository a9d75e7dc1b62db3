"""Vocabularies in the forms that makers publish, as tokenizers of the `tokenizers` library."""

from inlay.models.vocabularies.forms import FORMS, read_vocabulary

__all__ = ["FORMS", "read_vocabulary"]
