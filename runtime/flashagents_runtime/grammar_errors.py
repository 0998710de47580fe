"""What SGLang and xgrammar say of a grammar that cannot be, as an error that names the argument.

The words are SGLang 0.5.18's (`constrained/grammar_manager.py`); other words stay what they are.
"""

from __future__ import annotations

import re

from .errors import RequestRejectedError

# xgrammar begins with the time of day and a line of its C++ source.
_BAD = re.compile(
    r"Failed to compile (?P<kind>\w+) grammar: (?:\[[\d:]+\] \S+:\d+: )?(?P<why>.*?)(?:\n|\\n)?(?:\"\W*)?$",
    re.DOTALL,
)
_ARGUMENT = {
    "regex": "regex",
    "ebnf": "ebnf",
    "json": "the JSON schema of the answer (json_output, response_format)",
    "structural_tag": "the schemas of the tools",
}


def bad_grammar(message: str) -> RequestRejectedError | None:
    """The error, where SGLang's message says that a grammar cannot be compiled; else None."""
    found = _BAD.search(message)
    if found is None:
        return None
    argument = _ARGUMENT.get(found["kind"], found["kind"])
    return RequestRejectedError(f"no grammar can be made of {argument}: {found['why'].strip()}")


__all__ = ["bad_grammar"]
