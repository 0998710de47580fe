"""Between our types and SGLang's: `GenerateReqInput` in, the dicts of its tokenizer manager out."""

from __future__ import annotations

from typing import Any

from .. import sglang_seams as seams
from ..types import Delta, FinishReason, GenerateRequest, GenerateResult, TokenLogprob, Usage
from .answers import AnswerPlan


class Rejected(Exception):
    """SGLang ended a request with an error. `rejected`: the request was at fault, not the engine."""

    def __init__(self, message: str, rejected: bool) -> None:
        self.rejected = rejected
        super().__init__(message)


def request_fields(request: GenerateRequest) -> dict[str, Any]:
    """The fields of a streaming `GenerateReqInput`: the body of a server's `/generate` as well."""
    optional = {
        "lora_path": request.lora,
        "priority": request.priority,
        "session_id": request.session_id,
        "extra_key": request.extra_key,
        "cache_salt": request.cache_salt,
        "routed_dp_rank": request.routed_dp_rank,
        "image_data": request.image_data,
    }
    if request.logprobs:
        optional |= {
            "return_logprob": True,
            "top_logprobs_num": request.top_logprobs,
            "return_text_in_logprobs": True,
        }
    return {
        "rid": request.rid,
        "input_ids": request.input_ids,
        "sampling_params": {"max_new_tokens": None, **request.sampling.to_sglang()},
        "stream": True,
        **{key: value for key, value in optional.items() if value is not None},
    }


def to_sglang_request(request: GenerateRequest, plan: AnswerPlan | None = None) -> Any:
    """A streaming `sglang.srt.managers.io_struct.GenerateReqInput`; `plan` is that of a formatted answer."""
    fields = request_fields(request if plan is None else plan.request)
    if plan is not None and plan.require_reasoning:
        fields["require_reasoning"] = True
    return seams.symbol("sglang.srt.managers.io_struct.GenerateReqInput")(**fields)


def to_delta(out: dict[str, Any], logprobs: bool, *, aborted: bool) -> Delta:
    """One output of `TokenizerManager.generate_request`, in incremental streaming.

    Args:
        out: SGLang's dict: text, output_ids, meta_info.
        logprobs: the request asked for log-probabilities.
        aborted: we have asked SGLang to abort this request, so an abort is no error.

    Raises:
        Rejected: SGLang ended the request by itself.
    """
    meta = out["meta_info"]
    reason = meta.get("finish_reason")
    result = None
    if reason is not None:
        kind = reason["type"]
        if kind == "abort" and not aborted:
            message = reason.get("message") or "the engine aborted the request"
            raise Rejected(message, rejected=int(reason.get("status_code") or 500) < 500)
        result = GenerateResult(
            finish_reason=_FINISH[kind], matched_stop=reason.get("matched"), usage=_usage(meta)
        )
    return Delta(
        out.get("text") or "",
        list(out.get("output_ids") or ()),
        result,
        _logprobs(meta) if logprobs else None,
    )


_FINISH: dict[str, FinishReason] = {"stop": "stop", "length": "length", "abort": "abort"}


def _usage(meta: dict[str, Any]) -> Usage:
    return Usage(
        prompt_tokens=meta.get("prompt_tokens", 0),
        cached_tokens=meta.get("cached_tokens", 0),
        completion_tokens=meta.get("completion_tokens", 0),
        shared_in_turn_tokens=(meta.get("cached_tokens_details") or {}).get("shared_in_turn", 0),
    )


def _logprobs(meta: dict[str, Any]) -> list[TokenLogprob]:
    tops = meta.get("output_top_logprobs") or []
    out = []
    for i, (logprob, token_id, token) in enumerate(meta.get("output_token_logprobs") or []):
        top = tops[i] if i < len(tops) and tops[i] else []
        out.append(TokenLogprob(token or "", token_id, logprob, [(t or "", lp) for lp, _, t in top]))
    return out
