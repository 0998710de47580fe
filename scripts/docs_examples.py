"""For the documentation site: shows the `Example:` of our docstrings as code.

Google's style, as griffe reads it, knows code only under `Examples:`.
"""

from __future__ import annotations

from typing import Any

import griffe


class Examples(griffe.Extension):
    """Reads `Example:` as `Examples:`."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called for every object whose docstring is shown."""
        if obj.docstring is not None:
            lines = obj.docstring.value.splitlines()
            obj.docstring.value = "\n".join(
                "Examples:" if line.strip() == "Example:" else line for line in lines
            )
