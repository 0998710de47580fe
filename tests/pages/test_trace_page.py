"""The trace's page in a real browser: it draws, zooms, hovers, changes colours, and complains of nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashagents_runtime.trace import Trace, Turn
from helpers.browser import open_page
from helpers.traces import made_up

pytestmark = [pytest.mark.fetch, pytest.mark.filterwarnings("ignore::ResourceWarning")]

BARS = "#timeline .barlayer .point"
BACK = "getComputedStyle(document.body).backgroundColor"
RANGE = "document.getElementById('timeline').layout.xaxis.range"


def test_a_comparison_of_twelve_agents(tmp_path: Path) -> None:
    ours, other = made_up(12, turns=24, name="with"), made_up(12, turns=24, overlap=False, name="without")
    with open_page(ours.save(tmp_path / "x.html", compare=other)) as (page, complaints):
        page.wait_for_selector(BARS, state="attached")
        view = ours.view
        bars = 2 * 24 * 2 + len(view.chunks) + 2 * len(view.tools)  # wait and decode, chunks, tools
        assert page.locator(BARS).count() == bars
        lanes = page.locator("#timeline .ytick, #timeline .y2tick").all_text_contents()
        assert lanes.count("agent_11") == 2, "every lane has its name"
        legend = page.locator("#timeline .legendtext").all_text_contents()
        assert {"decode", "prefilled ahead", "prefilled, then aborted", "tools", "hand-off gap"} <= set(
            legend
        )
        assert page.locator("#sums tr:first-child td").count() == 4, "both traces, and the part"
        assert page.locator("table.turns").count() == 2
        assert page.locator("table.turns tbody tr").count() == 48
        assert page.locator("table.groups").count() == 2 and "By agent: with" in page.content()
        assert complaints == []


def test_zoom_hover_and_colours(tmp_path: Path) -> None:
    with open_page(made_up(name="run").save(tmp_path / "x.html"), dark=True) as (page, complaints):
        page.wait_for_selector(BARS, state="attached")
        dark = page.evaluate(BACK)
        page.click("#theme")
        assert page.evaluate(BACK) != dark

        before = page.evaluate(RANGE)
        plot = page.locator("#timeline .nsewdrag").first.bounding_box()
        middle = plot["y"] + plot["height"] / 2
        page.mouse.move(plot["x"] + plot["width"] * 0.2, middle)
        page.mouse.down()
        page.mouse.move(plot["x"] + plot["width"] * 0.4, middle, steps=4)
        page.mouse.up()
        page.wait_for_function(f"JSON.stringify({RANGE}) !== '{before}'")
        after = page.evaluate(RANGE)
        assert after[1] - after[0] < 0.5 * (before[1] - before[0])

        page.mouse.dblclick(plot["x"] + plot["width"] * 0.5, middle)
        page.wait_for_function(f"{RANGE}[1] > {after[1]} + 0.1")
        box = page.locator(BARS).nth(15).bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.wait_for_selector("#timeline .hoverlayer .hovertext")
        hint = page.locator("#timeline .hoverlayer").text_content()
        assert "agent_0" in hint and "prompt" in hint
        assert complaints == []


def test_sixty_four_workflows_stay_readable(tmp_path: Path) -> None:
    with open_page(made_up(12, workflows=64).save(tmp_path / "x.html")) as (page, complaints):
        page.wait_for_selector(BARS, state="attached")
        assert page.locator("#timeline .ytick").count() == 64
        heights = page.evaluate(
            "[...document.querySelectorAll('#timeline .ytick text')].map(t => t.getBoundingClientRect().y)"
        )
        steps = [b - a for a, b in zip(sorted(heights), sorted(heights)[1:], strict=False)]
        assert min(steps) > 12, "lane names do not overlap"
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing is cut off"
        assert complaints == []


def test_names_are_text(tmp_path: Path) -> None:
    nasty = '</script><script>document.title = "taken"</script><img src=x onerror=\'document.title="taken"\'>'
    trace = Trace("safe")
    trace.record(Turn(agent=nasty, workflow=nasty, rid="r", start=0, first=0.1, end=1, engine=nasty))
    with open_page(trace.save(tmp_path / "x.html")) as (page, complaints):
        page.wait_for_selector(BARS, state="attached")
        page.locator(BARS).last.hover(force=True)
        page.wait_for_selector("#timeline .hoverlayer .hovertext")
        assert page.title() == "safe"
        assert "onerror" in page.locator("#timeline .hoverlayer").text_content(), "shown as it is"
        assert complaints == []
