"""Made-up traces for tests of what draws them: seeded, with every kind of event."""

from __future__ import annotations

import random

from flashagents_runtime.trace import Chunk, Mark, SessionEnd, ToolRun, Trace, Turn

ENGINE = "scripted:model#1"


def made_up(
    agents: int = 4,
    workflows: int = 1,
    turns: int = 12,
    *,
    overlap: bool = True,
    seed: int = 0,
    name: str = "",
) -> Trace:
    """Workflows of `agents` that take turns, each one's prompt prefilled during the turn before."""
    draw = random.Random(seed)
    trace = Trace(name)
    for w in range(workflows):
        workflow = f"team {w:02d}"
        now, prompt = 1000.0 + draw.uniform(0, 3), 200
        for i in range(turns):
            agent, rid = f"agent_{i % agents:02d}", f"{seed}-{w}-{i}"
            new = draw.randrange(60, 240)
            wait = 0.03 if overlap and i else 0.1 + prompt / 4000
            first = now + wait
            end = first + new / 60
            warm = prompt - 20 if overlap and i else 0
            trace.record(
                Turn(
                    agent=agent,
                    workflow=workflow,
                    engine=ENGINE,
                    rid=rid,
                    start=now,
                    first=first,
                    end=end,
                    prompt=prompt,
                    cached=warm,
                    prewarmed=warm // 2,
                    completion=new,
                    model="model",
                )
            )
            if overlap and i + 1 < turns:
                session, parts = f"{rid}-session", 4
                for part in range(parts):
                    begun = now + (end - now) * (part + 0.6) / parts
                    low = prompt + new * part // parts
                    trace.record(
                        Chunk(
                            engine=ENGINE,
                            session=session,
                            start=begun,
                            end=begun + 0.08,
                            position=(low, low + new // parts),
                            computed=new // parts,
                            outcome="cancelled" if part == 0 and i % 5 == 4 else "done",
                        )
                    )
                trace.record(
                    SessionEnd(
                        engine=ENGINE,
                        session=session,
                        time=end,
                        rid=f"{seed}-{w}-{i + 1}",
                        chunks=parts,
                        computed=new,
                        prewarmed=new - 10,
                        wasted=10,
                    )
                )
            if i % 4 == 3:
                trace.record(ToolRun(agent=agent, workflow=workflow, tool="search", start=end, end=end + 0.4))
                end += 0.4
            prompt += new
            now = end + 0.01
        trace.record(
            Mark(agent="agent_00", workflow=workflow, name="task done", time=now, data={"turns": turns})
        )
    return trace


__all__ = ["ENGINE", "made_up"]
