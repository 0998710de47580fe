"""Models from the Hugging Face hub, through its own library and cache; used only where a hub id is given."""

from __future__ import annotations

from pathlib import Path

from .errors import ModelDownloadError, ModelNotFoundError
from .model_cache import disk_full
from .types import Progress, ProgressCallback

_SMALL_FILES = ["*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken"]
_FULL = ("No space left on device", "os error 28", "Disk quota exceeded")


def fetch_from_hub(hub_id: str, *, progress: ProgressCallback) -> Path:
    """Return the folder of a hub model's snapshot, downloaded at its first use.

    safetensors weights are taken; older formats only where a model has none.

    Raises:
        ModelNotFoundError: the hub does not know the model, or it is gated or private.
        ModelDownloadError: the hub could not be reached and the model is not in its cache.
        DiskFullError: there is no room for it.
    """
    progress(Progress(f"Fetching {hub_id} from the model hub"))
    folder = _snapshot(hub_id, [*_SMALL_FILES, "*.safetensors"])
    if not any(folder.glob("*.safetensors")):
        folder = _snapshot(hub_id, [*_SMALL_FILES, "*.bin"])
    return folder


def _snapshot(hub_id: str, patterns: list[str]) -> Path:
    import httpx
    from huggingface_hub import constants, errors, snapshot_download
    from huggingface_hub.utils import tqdm

    class SilentBar(tqdm):  # type: ignore[misc]  # untyped there
        def __init__(self, *args: object, **kwargs: object) -> None:
            super().__init__(*args, **{**kwargs, "disable": True})

    try:
        return Path(snapshot_download(hub_id, allow_patterns=patterns, tqdm_class=SilentBar))
    except errors.GatedRepoError as error:
        raise ModelNotFoundError(
            f"the hub's model {hub_id} is gated: accept its terms on its page and log in (`hf auth login`)"
        ) from error
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.HFValidationError) as error:
        raise ModelNotFoundError(
            f"there is no model {hub_id!r}: no such folder here, and the hub does not know it"
            " (or it is private: log in with `hf auth login`)"
        ) from error
    except (errors.LocalEntryNotFoundError, errors.HfHubHTTPError, httpx.HTTPError, OSError) as error:
        if isinstance(error, OSError) and any(sign in str(error) for sign in _FULL):
            raise disk_full(Path(constants.HF_HUB_CACHE)) from error
        raise ModelDownloadError(
            f"{_why(error, constants.ENDPOINT)}, so whether it has a model {hub_id!r} is not known; it is no"
            " folder here and not in the hub's cache. Pass the path of a model folder, or leave the model out"
            " for the default one, which comes from the package index"
        ) from error


def _why(error: BaseException, hub: str) -> str:
    """What kept us from the hub: the library's own error says so only in the errors that led to it."""
    import httpx
    from huggingface_hub import errors

    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in chain:
        chain.append(cause)
        cause = cause.__cause__ or cause.__context__
    for link in chain:
        if isinstance(link, errors.OfflineModeIsEnabled):
            return "the model hub was not asked (HF_HUB_OFFLINE is set)"
        if isinstance(link, errors.HfHubHTTPError) and link.response is not None:
            return f"the model hub {hub} answered with status {link.response.status_code} (try again later)"
        if isinstance(link, httpx.HTTPError):
            return (
                f"the model hub {hub} cannot be reached ({type(link).__name__}: {link}; check the network,"
                " and HF_ENDPOINT or the proxy where you use one)"
            )
    return f"the model hub {hub} could not be asked ({type(error).__name__}: {error}; check the network)"


__all__ = ["fetch_from_hub"]
