"""The items of a list that a model is still writing: each as soon as it is whole."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from typing import Any

import ijson

from flashagents_runtime import FlashAgentsError


class StreamedJSONError(FlashAgentsError, ValueError):
    """What was streamed is no JSON, or ended in the middle; often `max_tokens` cut it off."""


async def stream_items(chunks: AsyncIterable[str], path: str) -> AsyncIterator[Any]:
    """Yield the items of an array in a JSON text that comes in pieces.

    An item is yielded when its last character has come, not when the next item begins. The text is parsed
    once, by ijson's push parser, whatever the size of the pieces.

    Args:
        chunks: the pieces, for example the `str` ones of a model client's `create_stream`.
        path: where the array is: the keys down to it, with dots; "" where the text itself is the array.

    Raises:
        StreamedJSONError: the text is no JSON, or ends before it is complete; what was whole has been
            yielded by then.

    Example:
        >>> async for slide in stream_items(texts, "slides"):
        ...     start(slide["title"])
    """
    found = ijson.sendable_list()
    parser = ijson.items_coro(found, f"{path}.item" if path else "item", use_float=True)
    try:
        async for chunk in chunks:
            if not chunk:  # to ijson, nothing is the end
                continue
            parser.send(chunk.encode())
            items = found[:]
            del found[:]
            for item in items:
                yield item
        parser.close()
    except ijson.JSONError as e:
        raise StreamedJSONError(
            f"the streamed answer is no complete JSON ({str(e).splitlines()[0]}); "
            "was it cut off by max_tokens, or asked for without json_output?"
        ) from e


__all__ = ["StreamedJSONError", "stream_items"]
