"""A run's own CancellationToken: nothing of a run stays on the caller's."""

from __future__ import annotations

import contextlib
from asyncio import Future
from collections.abc import Callable, Iterator
from typing import Any

from autogen_core import CancellationToken


class RunToken(CancellationToken):
    """Forgets a linked future when it is done.

    AutoGen's own token keeps every future that was ever linked: one a message, for as long as it lives.
    """

    def link_future(self, future: Future[Any]) -> Future[Any]:
        """See `CancellationToken.link_future`; to be called in the future's event loop."""

        def cancel() -> None:
            future.cancel()

        def forget(_: object) -> None:
            with self._lock, contextlib.suppress(ValueError):
                self._callbacks.remove(cancel)

        with self._lock:
            if self._cancelled:
                future.cancel()
                return future
            self._callbacks.append(cancel)
        future.add_done_callback(forget)
        return future


@contextlib.contextmanager
def linked(token: CancellationToken | None, callback: Callable[[], None]) -> Iterator[None]:
    """One callback on a token for as long as the block lasts; called at once if it is cancelled already."""
    if token is None:
        yield
        return
    token.add_callback(callback)
    try:
        yield
    finally:
        with token._lock, contextlib.suppress(ValueError):
            token._callbacks.remove(callback)


__all__ = ["RunToken", "linked"]
