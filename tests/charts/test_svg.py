"""Timelines as pictures: what stands in the SVG is what the schedule says."""

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from benchmarks.inception_block import inception_e, planned
from braid.charts.kinds import ENGINES
from braid.charts.svg import legible_zoom, time_text, timeline_svg
from braid.charts.timeline import Bar, Timeline, scheduled, sequential
from braid.core.plan import EnginePart, Launch, StreamPlan, sequential_plan
from braid.core.runtimes import ONNXRUNTIME, OPENVINO
from braid.core.schedule import Provenance, Schedule, Stage

SVG = "{http://www.w3.org/2000/svg}"


def draw(schedule: Schedule) -> ElementTree.Element:
    graph = inception_e(schedule.key.batch_size)
    tracks = [sequential(schedule), scheduled(schedule)]
    return ElementTree.fromstring(timeline_svg(tracks, [graph, graph], "Inception-E"))


def marked(picture: ElementTree.Element, kind: str) -> list[ElementTree.Element]:
    return [each for each in picture.iter(f"{SVG}g") if each.get("class") == kind]


def words(picture: ElementTree.Element) -> str:
    return " ".join("".join(each.itertext()) for each in picture.iter(f"{SVG}text"))


def test_the_stages_of_inceptions_last_block_add_up_to_the_makespan_that_is_printed() -> None:
    schedule = planned()
    picture = draw(schedule)

    stages = marked(picture, "stage")
    assert 2 <= len(stages) <= 4
    total = sum(float(stage.attrib["data-us"]) for stage in stages)
    assert schedule.provenance.predicted_us is not None
    assert total == pytest.approx(schedule.provenance.predicted_us, abs=0.01)
    assert f"makespan {time_text(schedule.provenance.predicted_us)}" in words(picture)
    for stage, drawn in zip(schedule.stages, stages, strict=True):
        title = drawn.findtext(f"{SVG}title", "")
        assert f"{len(stage.groups)} group" in title


def test_every_unit_is_drawn_once_a_track_and_says_its_shapes_and_times() -> None:
    picture = draw(planned())

    bars = marked(picture, "bar")
    assert sorted(int(bar.attrib["data-unit"]) for bar in bars) == sorted([*range(11), *range(11)])
    facts = [bar.findtext(f"{SVG}title", "") for bar in bars]
    assert any("b2x (aten.convolution)" in text and "FP32[1, 448, 8, 8]" in text for text in facts)
    assert all("alone" in text and "here" in text for text in facts)
    assert any("fused aten.relu" in text for text in facts)
    assert sum("stage 1, group 1" in text for text in facts) == len(planned().stages[0].groups[0])


def test_both_tracks_share_one_axis() -> None:
    picture = draw(planned())
    scales = set()
    for bar in marked(picture, "bar"):
        box = bar.find(f"{SVG}rect")
        assert box is not None
        scales.add(round(float(box.attrib["width"]) / float(bar.attrib["data-us"]), 1))

    assert len(scales) == 1


def test_it_reads_in_black_and_white() -> None:
    """Families that stand beside each other differ in hatching or, without colour, in lightness."""
    from braid.charts.kinds import FAMILIES, OTHER

    looks = {(family.hatching, round(_lightness(family.fill), 1)) for family in (*FAMILIES, OTHER)}
    assert len(looks) == len(FAMILIES) + 1
    assert all(_lightness(family.fill) > 0.6 for family in FAMILIES), "black text on it"
    text = timeline_svg([sequential(planned())], [inception_e()], "x")
    assert "http" not in text.replace("http://www.w3.org/2000/svg", ""), "no outside asset"
    assert "<script" not in text


def _lightness(colour: str) -> float:
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_a_merged_stage_has_a_frame_and_says_so() -> None:
    schedule = planned()
    merged = Stage(((0,), (1,), (4,)), "merge", 50.0)
    rest = tuple(Stage(((unit,),), latency_us=10.0) for unit in (2, 3, 5, 6, 7, 8, 9, 10))
    picture = draw(replace(schedule, stages=(merged, *rest), plan=sequential_plan(11)))

    assert sum(each.get("class") == "merge" for each in picture.iter(f"{SVG}rect")) == 1
    assert "stage 1: merge, 3 groups, 50 us" in " ".join(
        stage.findtext(f"{SVG}title", "") for stage in marked(picture, "stage")
    )
    first = [bar for bar in marked(picture, "bar") if bar.attrib["data-unit"] in ("0", "1", "4")]
    assert [float(bar.attrib["data-us"]) for bar in first[3:]] == [50.0] * 3


def test_what_was_not_measured_alone_is_said_to_be_estimated() -> None:
    schedule = planned()
    bare = replace(schedule, provenance=Provenance(predicted_us=schedule.provenance.predicted_us))

    assert "estimated" not in words(draw(schedule))
    assert "estimated" in words(draw(bare))


def test_plans_without_stages_are_simulated_on_their_streams() -> None:
    schedule = planned(planner="opara")
    assert not schedule.stages

    timeline = scheduled(schedule)
    ends = {bar.unit: bar.start_us + bar.duration_us for bar in timeline.bars}
    starts = {bar.unit: bar.start_us for bar in timeline.bars}
    for unit, needed in enumerate(inception_e().predecessors()):
        assert all(ends[other] <= starts[unit] + 1e-9 for other in needed)
    assert timeline.lanes == schedule.plan.streams


def test_names_from_a_model_cannot_break_out_of_the_picture() -> None:
    graph = inception_e()
    evil = '<script>alert("x")</script>&'
    operators = (replace(graph.operators[0], name=evil), *graph.operators[1:])
    renamed = replace(graph, operators=operators)
    text = timeline_svg([sequential(planned())], [renamed], evil)

    ElementTree.fromstring(text)
    assert not re.search(r"<script", text)


def test_stages_that_may_overlap_say_so_unless_there_is_one_stream() -> None:
    schedule = planned()
    assert "overlap" not in scheduled(schedule).title

    loose = replace(schedule, plan=replace(schedule.plan, barriers=()))
    assert "no barriers: stages may overlap" in scheduled(loose).title
    single = replace(schedule, plan=sequential_plan(11))
    assert "overlap" not in scheduled(single).title


def test_one_unit_that_takes_nearly_all_the_time_leaves_the_others_legible() -> None:
    even = Timeline("even", tuple(Bar(unit, 0, 40.0 * unit, 40.0) for unit in range(10)), (), 400.0)
    slow = Timeline("slow", (*even.bars, Bar(10, 0, 400.0, 60_000.0)), (), 60_400.0)

    assert legible_zoom([even]) == legible_zoom([sequential(planned())]) == 1
    picture = zoomed(slow, legible_zoom([slow]))

    boxes = [bar.find(f"{SVG}rect") for bar in marked(picture, "bar")]
    widths = sorted(float(box.attrib["width"]) for box in boxes if box is not None)
    assert widths[0] >= 6
    assert widths[-1] / widths[0] == pytest.approx(60_000 / 40, rel=0.01), "still to scale"


def test_zoom_ends_where_pictures_become_too_wide() -> None:
    slow = Timeline(
        "slow", (Bar(0, 0, 0.0, 1.0), Bar(1, 0, 1.0, 1.0), Bar(2, 0, 2.0, 1e9)), (), 1e9
    )

    assert float(zoomed(slow, legible_zoom([slow])).attrib["width"]) <= 32_100


def test_zoom_stretches_the_axis_with_as_many_more_ticks() -> None:
    far, near = (zoomed(sequential(planned()), zoom) for zoom in (1, 4))

    assert near.attrib["height"] == far.attrib["height"]
    assert float(near.attrib["width"]) == 4 * (float(far.attrib["width"]) - 100) + 100
    assert len(near.findall(f"{SVG}line")) > 3 * len(far.findall(f"{SVG}line"))


def zoomed(track: Timeline, zoom: int) -> ElementTree.Element:
    return ElementTree.fromstring(timeline_svg([track], [inception_e()], "x", zoom))


def in_parts(*parts: EnginePart) -> Schedule:
    launches = tuple(Launch(unit, 0) for unit in range(11))
    return replace(planned(), plan=StreamPlan(launches, 1, parts=parts), stages=())


def test_units_that_an_engine_runs_say_so_and_bear_its_colour() -> None:
    part = EnginePart((1, 2, 3), OPENVINO, "2025.3", 2)

    picture = draw(in_parts(part))

    bars = marked(picture, "bar")[11:]  # of the second track
    colours = [[rect.get("fill") for rect in bar.iter(f"{SVG}rect")] for bar in bars]
    facts = [bar.findtext(f"{SVG}title", "") for bar in bars]
    assert [ENGINES[OPENVINO] in some for some in colours] == [
        unit in part.units for unit in range(11)
    ]
    assert ["OpenVINO 2025.3 on 2 threads" in text for text in facts] == [
        unit in part.units for unit in range(11)
    ]
    assert "in OpenVINO" in words(picture)


def test_a_part_takes_as_long_as_it_was_measured_in_its_engine() -> None:
    part = EnginePart((1, 2, 3), OPENVINO, "2025.3", 2)
    stages = [((0,), 10.0), (part.units, 70.0), (tuple(range(4, 11)), 30.0)]
    measured = tuple(Stage((units,), latency_us=us) for units, us in stages)

    bars = scheduled(replace(in_parts(part), stages=measured)).bars

    times_us = {bar.unit: bar.duration_us for bar in bars}
    assert sum(times_us[unit] for unit in part.units) == pytest.approx(70.0)
    assert times_us[0] == pytest.approx(10.0)
    assert {bar.unit for bar in bars if bar.engine == OPENVINO} == set(part.units)


def test_a_plan_of_rows_names_them() -> None:
    units = tuple(range(11))
    parts = [EnginePart(units, ONNXRUNTIME, "1.23", 1, rows) for rows in (3, 2)]

    assert "3 + 2 rows side by side in ONNX Runtime 1.23 on 1 thread" in words(
        draw(in_parts(*parts))
    )
