"""From a document to slides: an analyser writes the outline, and each slide is begun when its item is whole.

python examples/slides/main.py
python examples/slides/main.py --compare
python examples/slides/main.py --vision-model /models/qwen-vl --image chart.png
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.base import TaskResult
from autogen_agentchat.messages import ModelClientStreamingChunkEvent, MultiModalMessage, TextMessage
from autogen_core import Image
from pydantic import BaseModel, Field, ValidationError, create_model
from rich.console import Console

from flashagents_autogen import FlashAgentsChatCompletionClient
from flashagents_autogen.teams import StreamedJSONError, stream_items
from flashagents_autogen.teams.timeline import Stopwatch, TimedTurn, print_timelines, same_texts
from flashagents_runtime import FlashAgentsError
from flashagents_runtime.progress import show_progress

DOCUMENT = Path(__file__).parent / "document.md"
ANALYSER = "You plan presentations. Read the document and write the outline: a title and a point a slide."
GENERATOR = "You write the text of one slide: a heading and two short sentences. Nothing else."


class Slide(BaseModel):
    """What one slide is about."""

    title: Annotated[str, Field(max_length=40)]
    point: Annotated[str, Field(max_length=60)]


def outline_of(slides: int) -> type[BaseModel]:
    """The form of an outline of so many slides."""
    items = Annotated[list[Slide], Field(min_length=slides, max_length=slides)]
    return create_model("Outline", slides=(items, ...))


async def write_slides(
    client: FlashAgentsChatCompletionClient,
    task: TextMessage | MultiModalMessage,
    slides: int,
    *,
    at_once: bool,
    analyser_client: FlashAgentsChatCompletionClient | None = None,
) -> list[TimedTurn]:
    """Outline and slides; `at_once` begins a slide with its item, else when the outline is complete."""
    stopwatch = Stopwatch()
    analyser: AssistantAgent = AssistantAgent(
        "analyser",
        model_client=analyser_client or client,
        system_message=ANALYSER,
        output_content_type=outline_of(slides),
        model_client_stream=True,
    )

    async def outline() -> AsyncIterator[str]:
        stopwatch.begin("analyser")
        try:
            async for item in analyser.run_stream(task=task):
                if not isinstance(item, TaskResult):
                    stopwatch.see(item)
                if isinstance(item, ModelClientStreamingChunkEvent):
                    yield item.content
        except ValidationError as e:  # by AutoGen, once the answer is complete
            raise StreamedJSONError(f"the outline is not what was asked for: {e.errors()[0]['msg']}") from e

    async def generate(agent: AssistantAgent, slide: dict[str, Any]) -> None:
        async for item in agent.run_stream(task=f"{slide['title']}: {slide['point']}"):
            if not isinstance(item, TaskResult):
                stopwatch.see(item)

    try:
        async with asyncio.TaskGroup() as group:
            planned: list[dict[str, Any]] = []

            def begin(number: int) -> None:
                agent: AssistantAgent = AssistantAgent(
                    f"slide_{number:02}",
                    model_client=client,
                    system_message=GENERATOR,
                    model_client_stream=True,
                )
                stopwatch.begin(agent.name)
                group.create_task(generate(agent, planned[number - 1]))

            async for slide in stream_items(outline(), "slides"):
                planned.append(slide)
                if at_once:
                    begin(len(planned))
            if not at_once:
                for number in range(1, len(planned) + 1):
                    begin(number)
    except* FlashAgentsError as errors:
        raise errors.exceptions[0] from None
    return stopwatch.turns


async def run(options: argparse.Namespace) -> None:
    """Start the engines, write the slides, print, and close the engines however it ends."""
    client = FlashAgentsChatCompletionClient(options.model, max_tokens=options.max_tokens, temperature=0)
    vision = None
    task: TextMessage | MultiModalMessage = TextMessage(
        content=options.document.read_text().strip(), source="user"
    )
    if options.vision_model:
        vision = FlashAgentsChatCompletionClient(options.vision_model, temperature=0)
        task = MultiModalMessage(content=[task.content, Image.from_file(options.image)], source="user")
    # The outline is as long as its schema makes it; `max_tokens` is for the slides.
    planner = vision or FlashAgentsChatCompletionClient(options.model, temperature=0)
    out = Console()
    try:
        with show_progress() as progress:
            await client.start(progress)
            await planner.start(progress)
        modes = {"overlap off": False, "overlap on": True} if options.compare else {"slides": True}
        runs: dict[str, list[TimedTurn]] = {}
        for title, at_once in modes.items():
            await client.engine.flush_cache()
            runs[title] = await write_slides(
                client, task, options.slides, at_once=at_once, analyser_client=planner
            )
        if not options.compare:
            for turn in sorted(runs["slides"], key=lambda turn: turn.agent):
                out.print(f"[bold cyan]{turn.agent}[/]")
                out.print(turn.text, markup=False, highlight=False)
        out.print()
        print_timelines(out, runs)
        if options.compare:
            out.print(f"same answers: {'yes' if same_texts(runs) else 'NO'}")
    finally:
        await planner.close()
        await client.close()


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0, 1 for an error of ours (one line), 130 on Ctrl-C."""
    parser = argparse.ArgumentParser(description="An outline, and a slide for each item while it is written.")
    parser.add_argument("--document", type=Path, default=DOCUMENT, help="a text file (default: a short one)")
    parser.add_argument("--slides", type=int, default=12, help="how many (default: %(default)s)")
    parser.add_argument("--model", help="a Hugging Face folder or hub id (default: SmolLM2-135M-Instruct)")
    parser.add_argument("--vision-model", help="a model that sees, for the analyser; needs --image")
    parser.add_argument("--image", type=Path, help="a picture of the document, for --vision-model")
    parser.add_argument("--max-tokens", type=int, default=40, help="longest slide (default: %(default)s)")
    parser.add_argument(
        "--compare", action="store_true", help="run without and with overlap, and print both timelines"
    )
    options = parser.parse_args(arguments)
    if bool(options.vision_model) != bool(options.image):
        parser.error("--vision-model and --image belong together")
    try:
        asyncio.run(run(options))
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    except (FlashAgentsError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
