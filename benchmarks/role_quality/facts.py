"""A task whose answers only a role's own adapter can read from the context. Made here, seeded.

A list says which thing lies in which box. Each role calls each thing by a word of its own, which stands
nowhere in the list: it is learnt with the adapter. Then the roles go through the boxes in some order, each
with its word for the thing. A line names the box alone, and each box comes once, so the thing is read from a
line of the list that another role may have cached; a role that reads the values of another one's adapter is
told that one's word. To copy what followed the box's name before is what a language model does by itself, so
an adapter has only to learn the words.
"""

from __future__ import annotations

import random

from .trajectories import ROLES, Segment, Trajectory

THINGS = (
    "lantern", "anchor", "rope", "mirror", "kettle", "drum", "ladder", "violin",
    "hammer", "compass", "blanket", "bottle",
)  # fmt: skip
WORDS = (
    "red", "blue", "green", "white", "black", "gold", "silver", "brown", "north", "south", "east", "west",
    "one", "two", "three", "four", "five", "six", "seven", "eight", "spring", "summer", "winter", "morning",
    "evening", "night", "iron", "stone", "wood", "glass", "paper", "water", "fire", "wind", "rain", "snow",
)  # fmt: skip


def code_words() -> dict[str, dict[str, str]]:
    """Each role's word for each thing: 36 words, none of them twice."""
    shuffled = list(WORDS)
    random.Random(7).shuffle(shuffled)
    n = len(THINGS)
    return {
        role: dict(zip(THINGS, shuffled[i * n : (i + 1) * n], strict=True)) for i, role in enumerate(ROLES)
    }


def make(count: int, seed: int, *, boxes: int = 6, things: int = len(THINGS)) -> list[Trajectory]:
    """`count` trajectories; the roles speak in random order, never the same one twice in a row.

    Args:
        boxes: in a list, each asked for once.
        things: the first ones of THINGS; fewer are easier to learn.
    """
    rng = random.Random(seed)
    words = code_words()
    out = []
    numbers = rng.sample(range(1000, 1000 + 9 * count), count)
    for n in range(count):
        lying = rng.sample(THINGS[:things], boxes)
        listing = "".join(f"box {i + 1}: {thing}\n" for i, thing in enumerate(lying))
        head = f"Store {numbers[n]}\n{listing}In our words:\n"
        segments = [Segment(head)]
        role = ""
        for box in rng.sample(range(boxes), boxes):
            role = rng.choice([r for r in ROLES if r != role])
            segments += [
                Segment(f"box {box + 1}:"),
                Segment(f" {words[role][lying[box]]}", role),
            ]
            segments.append(Segment("\n"))
        out.append(Trajectory(head, "facts", tuple(segments)))
    return out
