"""One colour a kind, the same in every picture: Okabe and Ito's, told apart by colour-blind readers too."""

WAIT = "#999999"  # from the request to the first token: queue and prefill
DECODE = "#0072b2"
AHEAD = "#009e73"  # prefilled while others decoded
ABORTED = "#d55e00"
TOOL = "#cc79a7"
GAP = "#e69f00"

KINDS = {
    "wait": (WAIT, "until first token"),
    "decode": (DECODE, "decode"),
    "ahead": (AHEAD, "prefilled ahead"),
    "aborted": (ABORTED, "prefilled, then aborted"),
    "tool": (TOOL, "tools"),
    "gap": (GAP, "hand-off gap"),
}
