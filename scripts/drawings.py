"""Draws the concepts' pictures in docs/drawings:  python scripts/drawings.py

Each is a light card with dark text of its own, so it can be read on light and on dark pages.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "drawings"

GREY, BLUE, GREEN, ORANGE, RED = "#d9dde2", "#9ecae9", "#a6dba0", "#f5c97a", "#f0a58f"
STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#1b1f24} .small{font-size:11px;fill:#4a535d}"
    " .bold{font-weight:600} .line{stroke:#4a535d;stroke-width:1.4;fill:none}"
)


class Drawing:
    """Boxes, texts and arrows on a card; lengths in pixels from its upper left corner."""

    def __init__(self, title: str, width: int, height: int) -> None:
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}" role="img" aria-label="{escape(title)}">',
            f"<title>{escape(title)}</title><style>{STYLE}</style>",
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            'orient="auto"><path d="M0 0 8 4 0 8z" fill="#4a535d"/></marker></defs>',
            f'<rect width="{width}" height="{height}" rx="8" fill="#ffffff" stroke="#d8dee4"/>',
        ]

    def text(self, x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> None:
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'
        )

    def box(self, x: float, y: float, width: float, height: float, color: str, words: str = "") -> None:
        """A filled rectangle with words in its middle."""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3" fill="{color}" '
            'stroke="#4a535d" stroke-width="0.7"/>'
        )
        if words:
            lines = words.split("\n")
            top = y + height / 2 + 4 - 7.5 * (len(lines) - 1)
            for i, line in enumerate(lines):
                self.text(x + width / 2, top + 15 * i, line, anchor="middle")

    def arrow(self, *points: tuple[float, float], dashed: bool = False) -> None:
        """Along the points, with a tip at the last."""
        path = "M" + " ".join(f"{x:g} {y:g}" for x, y in points)
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        self.parts.append(f'<path class="line" d="{path}" marker-end="url(#tip)"{dash}/>')

    def svg(self) -> str:
        """The file's text."""
        return "\n".join([*self.parts, "</svg>", ""])


def handoff() -> Drawing:
    """Two agents on one clock, without and with the hand-off."""
    d = Drawing("Hand-off: B's prompt is prefilled while A still writes", 720, 250)
    for top, title in ((24, "without"), (128, "with the hand-off")):
        d.text(16, top, title, "bold")
        d.text(16, top + 30, "A")
        d.text(16, top + 62, "B")
        d.box(40, top + 12, 70, 26, GREY, "prefill")
        d.box(110, top + 12, 290, 26, BLUE, "A's answer is decoded")
    d.box(400, 68, 150, 26, GREY, "prefill: head + A's text")
    d.box(550, 68, 120, 26, BLUE, "B's answer")
    d.box(110, 172, 90, 26, GREEN, "head")
    for i in range(4):
        x = 222 + 48 * i
        d.arrow((x + 10, 166), (x + 16, 172))
        d.box(x + 2, 172, 30, 26, GREEN, "text")
    d.box(400, 172, 26, 26, GREY)
    d.box(426, 172, 120, 26, BLUE, "B's answer")
    d.arrow((413, 212), (413, 200))
    d.text(400, 223, "hand-off: only the last tokens are left to compute", "small")
    d.text(16, 240, "time →", "small")
    d.text(110, 240, "green: prefill-only requests beside A's decode, within 5% of its time", "small")
    return d


def intra_turn() -> Drawing:
    """Three requests of one batch with a common head."""
    d = Drawing("Intra-turn cache: requests of one batch share a cold prefix", 720, 240)
    for left, title in ((16, "stock: each request computes it all"), (376, "published first")):
        d.text(left, 26, title, "bold")
        for i, name in enumerate(("reviewer 1", "reviewer 2", "reviewer 3")):
            y = 42 + 44 * i
            d.text(left, y + 18, name, "small")
            shared = left > 300 and i > 0
            d.box(left + 70, y, 170, 28, GREEN if shared else GREY, "found" if shared else "the paper")
            d.box(left + 240, y, 70, 28, GREY, "own")
    for y in (70, 114):
        d.arrow((470, y), (470, y + 15))
    d.text(376, 190, "The first request's slots go into the radix tree before the", "small")
    d.text(376, 206, "forward pass; each layer writes K and V before it attends,", "small")
    d.text(376, 222, "so the others read what the same pass has just written.", "small")
    d.text(16, 190, "The prefix is cold: nobody has finished it when the batch", "small")
    d.text(16, 206, "is put together, so the radix cache has nothing to give.", "small")
    return d


def role_loras() -> Drawing:
    """What the pool holds for three adapters, apart and shared."""
    d = Drawing("Role LoRAs: one cache for the adapters of one backbone", 720, 260)
    d.text(16, 26, "stock: a cache for each adapter", "bold")
    d.text(376, 26, 'lora_sharing="base_lr": one for the group', "bold")
    for i, role in enumerate(("planner", "actor", "critic")):
        y = 44 + 46 * i
        d.text(16, y + 19, role, "small")
        d.box(80, y, 110, 30, GREY, "K")
        d.box(190, y, 110, 30, RED, "V with its LoRA")
        d.box(376, y, 70, 30, BLUE, role)
        d.arrow((446, y + 15), (492, 104))
    d.box(496, 78, 74, 52, GREEN, "K")
    d.box(570, 78, 84, 52, GREEN, "V of the\nbase model")
    d.box(654, 78, 42, 52, ORANGE, "x·A")
    d.text(496, 150, "x·A, of width r, beside each slot", "small")
    d.text(16, 206, "attention of role i:", "small")
    d.text(130, 206, "softmax(Q Kᵀ) · V_base  +  ( softmax(Q Kᵀ) · x A ) · Bᵢ", "bold")
    d.text(
        16,
        228,
        "Each role applies its own B to what it has read, so V is never written anew. Exact for a",
        "small",
    )
    d.text(
        16,
        244,
        "role alone on its context; among several, K and V_base are those of who wrote first.",
        "small",
    )
    return d


def groupchat() -> Drawing:
    """How a token of A gets into the prompt of B."""
    d = Drawing("Teams that overlap: from A's tokens to B's next prompt", 720, 270)
    d.box(16, 30, 130, 40, BLUE, "AssistantAgent A")
    d.box(196, 30, 130, 40, GREY, "model client")
    d.box(376, 30, 130, 40, GREY, "engine")
    d.arrow((146, 44), (194, 44))
    d.arrow((326, 44), (374, 44))
    d.arrow((376, 60), (328, 60))
    d.arrow((196, 60), (148, 60))
    d.text(351, 56, "tokens", "small", "middle")
    d.arrow((261, 70), (261, 118), dashed=True)
    d.text(270, 100, "side channel", "small")
    d.box(176, 120, 170, 44, ORANGE, "whose call is it?\nwho speaks next?")
    d.arrow((346, 142), (394, 142))
    d.box(396, 120, 180, 44, ORANGE, "forecast: B's conversation\nwith a gap for A's text")
    d.arrow((486, 164), (486, 196))
    d.box(396, 198, 180, 44, GREEN, "prefill session of B")
    d.arrow((576, 220), (640, 220), (640, 50), (508, 50))
    d.text(648, 140, "chunks", "small")
    d.box(16, 198, 130, 44, BLUE, "AssistantAgent B")
    d.arrow((146, 220), (394, 220))
    d.text(160, 212, "its turn: an ordinary request, as ever", "small")
    d.text(
        16, 262, "AutoGen's runtime and its messages stay as they are: a wrong forecast costs work.", "small"
    )
    return d


def architecture() -> Drawing:
    """The processes, and what goes between them."""
    d = Drawing("Architecture: the application and the engine's processes", 720, 290)
    d.text(16, 26, "your application: no torch, no SGLang", "bold")
    d.text(376, 26, "an engine, in processes of its own", "bold")
    d.box(16, 40, 180, 40, BLUE, "AutoGen: agents, teams")
    d.box(16, 110, 180, 44, BLUE, "FlashAgents client:\nmessages → token ids")
    d.box(16, 190, 180, 44, GREEN, "who speaks next?\nprefill sessions")
    d.arrow((86, 80), (86, 108))
    d.arrow((126, 108), (126, 82))
    d.arrow((106, 154), (106, 188), dashed=True)
    d.text(114, 176, "text, as it comes", "small")
    d.box(376, 40, 328, 44, GREY, "host: SGLang's tokenizer manager\nand detokenizer")
    d.box(376, 116, 328, 118, "#ffffff")
    d.text(388, 134, "SGLang's scheduler, with our plug-in", "small")
    d.box(388, 144, 148, 34, GREY, "batches, decode")
    d.box(544, 144, 148, 34, GREY, "radix cache, KV pool")
    d.box(388, 188, 98, 34, ORANGE, "intra-turn")
    d.box(491, 188, 98, 34, ORANGE, "pins, budget")
    d.box(594, 188, 98, 34, ORANGE, "LR rows")
    d.arrow((540, 84), (540, 114))
    d.arrow((196, 126), (290, 126), (290, 58), (374, 58))
    d.arrow((374, 70), (302, 70), (302, 140), (198, 140))
    d.text(310, 96, "frames over", "small")
    d.text(310, 110, "a socket pair", "small")
    d.arrow((196, 212), (282, 212), (282, 128))
    d.text(206, 206, "warm-ups", "small")
    d.text(
        16,
        262,
        "engine_url=: the same client speaks SGLang's HTTP to a server, with the plug-in or without.",
        "small",
    )
    d.text(
        16,
        278,
        "The host ends with the application; whatever happens to it, the application lives on.",
        "small",
    )
    return d


def scheduling() -> Drawing:
    """Three rules: who goes first, how much of the time, what is evicted last."""
    d = Drawing("Scheduling: requests first, warm-ups within a budget, pins evicted last", 720, 290)
    d.text(16, 26, "the queue: requests before warm-ups", "bold")
    for i, (color, words) in enumerate(
        [(BLUE, "request"), (BLUE, "request"), (GREEN, "warm-up"), (GREEN, "warm-up")]
    ):
        d.box(16 + 78 * i, 38, 74, 28, color, words)
    d.arrow((336, 52), (378, 52))
    d.text(388, 57, "no warm-up starts while a request waits", "small")
    d.text(16, 104, "the budget: on a GPU decodes may be slowed by 5%, on a CPU there is none", "bold")
    for i in range(12):
        d.box(16 + 40 * i, 116, 36, 26, BLUE, "step")
    d.box(16 + 40 * 12, 116, 76, 26, GREEN, "warm-ups")
    for i in range(3):
        d.box(576 + 40 * i, 116, 36, 26, BLUE, "step")
    d.text(
        16,
        160,
        "The due chunks of all sessions go in one pass, then none until the steps have paid for it.",
        "small",
    )
    d.text(16, 196, "eviction: pins go last, and nothing waits for them", "bold")
    for x, width, color, words in (
        (16, 190, GREY, "nobody's: least recent first"),
        (210, 130, GREEN, "oldest pin"),
        (344, 130, GREEN, "newest pin"),
        (478, 204, BLUE, "locked by running requests"),
    ):
        d.box(x, 208, width, 28, color, words)
    d.arrow((16, 250), (474, 250))
    d.text(16, 268, "evicted first", "small")
    d.text(474, 268, "evicted last", "small", "end")
    d.text(580, 256, "never", "small", "middle")
    return d


def role_training() -> Drawing:
    """Where the common A comes from."""
    d = Drawing("Training role adapters with one v_proj A for all", 720, 236)
    for i, role in enumerate(("planner", "actor", "critic")):
        y = 34 + 58 * i
        d.box(16, y, 120, 38, GREY, f"{role}'s pairs:\ninput, output")
        d.arrow((136, y + 19), (182, y + 19))
        d.box(
            184, y, 90, 38, ORANGE if i == 0 else RED, "v_proj A,\nlearnt" if i == 0 else "v_proj A,\nfixed"
        )
        d.box(274, y, 90, 38, BLUE, "v_proj B,\nlearnt")
        d.box(364, y, 90, 38, BLUE, "others,\nlearnt")
        d.arrow((454, y + 19), (500, y + 19 if i == 1 else 111 - 8 + 8 * i))
    for y in (72, 130):
        d.arrow((229, y), (229, y + 19))
    d.text(184, 24, "an adapter in PEFT's format for each role", "small")
    d.box(502, 84, 200, 54, GREEN, 'one engine,\nlora_sharing="base_lr"')
    d.text(502, 156, "x·A is the same for all roles:", "small")
    d.text(502, 171, "one row serves every one of them", "small")
    d.text(
        16, 224, "Without --shared-a each role learns an A of its own; the other schemes take those.", "small"
    )
    return d


def kernel() -> Drawing:
    """One tile of Flash-LoRA-Attention."""
    d = Drawing("Flash-LoRA-Attention: a second accumulator of width r", 720, 252)
    d.text(16, 26, "for each tile of keys", "bold")
    d.box(16, 44, 60, 60, GREY, "q")
    d.box(96, 44, 110, 60, GREEN, "K of\nthe tile")
    d.arrow((206, 74), (246, 74))
    d.box(248, 44, 110, 60, BLUE, "P: softmax,\nas ever")
    d.arrow((358, 62), (428, 62))
    d.arrow((358, 92), (380, 92), (380, 150), (428, 150))
    d.box(430, 34, 110, 56, GREEN, "V_base, width d")
    d.box(430, 122, 56, 56, ORANGE, "x·A,\nwidth r")
    d.arrow((540, 62), (590, 62))
    d.arrow((486, 150), (590, 150))
    d.box(592, 34, 112, 56, GREY, "O += P V_base")
    d.box(592, 122, 112, 56, GREY, "O_lr += P (x·A)")
    d.text(16, 128, "K and V_base: the same for all agents", "small")
    d.text(16, 144, "x·A: one row of width r beside each slot", "small")
    d.text(16, 160, "P is computed once for both", "small")
    d.text(16, 206, "after the last tile, once a request:", "bold")
    d.box(270, 190, 220, 28, BLUE, "(O + O_lr Bᵢ) / sum of P")
    d.text(16, 238, "Bᵢ is the adapter of the agent that asks: it never touches the cache.", "small")
    return d


DRAWINGS = {
    "architecture": architecture,
    "groupchat": groupchat,
    "handoff": handoff,
    "intra-turn": intra_turn,
    "kernel": kernel,
    "role-loras": role_loras,
    "role-training": role_training,
    "scheduling": scheduling,
}


def main() -> None:
    """Write them all."""
    FOLDER.mkdir(exist_ok=True)
    for name, make in DRAWINGS.items():
        (FOLDER / f"{name}.svg").write_text(make().svg(), encoding="utf-8")
    print(f"wrote {len(DRAWINGS)} drawings")


if __name__ == "__main__":
    main()
