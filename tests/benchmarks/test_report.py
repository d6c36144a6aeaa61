from dataclasses import replace

import pytest

from capsearch.benchmarks import report
from capsearch.benchmarks.retrieval import ResultRow
from capsearch.engine.errors import DataProblem, MissingExtra
from capsearch.engine.metrics import Figure


def row(mode, caption_lang=None, mrr=0.5, split="test-cococn", direction="t2i", collection=938):
    figures = dict.fromkeys(("r1", "r5", "r10"), Figure(0.25, 0.2, 0.3))
    figures = {"mrr": Figure(mrr, mrr - 0.01, mrr + 0.01), **figures, "medr": Figure(3, 2, 4)}
    return ResultRow(split, "zh", mode, caption_lang, direction, 984, collection, figures)


COCOCN = [
    row("cm", mrr=0.512),
    row("cm", mrr=0.9, direction="i2t"),
    row("cl", "en", mrr=0.734, collection=189),
    row("clm", "en", mrr=0.856, collection=189),
    row("clm", "ja", mrr=0.111, collection=94),
]


def printed(rows):
    lines = []
    for table in report.retrieval_tables(rows):
        assert all(len(cells) == len(table.headings) for cells in table.rows)
        lines += [table.title, *map(" | ".join, table.rows), *table.notes]
    return "\n".join(lines)


def test_a_row_shows_mrr_as_papers_write_it_with_its_interval():
    text = printed([row("cm", mrr=0.512)])
    assert ".512" in text and ".502-.522" in text and "0.512" not in text


def test_our_row_is_in_the_columns_of_the_paper():
    text = printed(COCOCN)
    assert all(name in text for name in report.PAPER)
    (ours,) = (line for line in text.splitlines() if "this model" in line)
    assert ours.split(" | ") == [
        "this model",
        ".734",  # CL
        ".512",  # CM
        ".856",  # CLM
    ]


def test_the_note_states_how_many_images_were_searched():
    text = " ".join(printed(COCOCN).split())
    assert "CM searches 938" in text and "189 that have English captions" in text


@pytest.mark.parametrize("split", ["test-xtd10", "val"])
def test_the_paper_is_left_out_for_other_splits(split):
    assert "table X" not in printed([row("cm", split=split)])


def test_the_paper_is_left_out_for_a_part_of_the_split():
    part = [replace(one, collection=one.collection // 10) for one in COCOCN]
    assert "table X" in printed(COCOCN) and "table X" not in printed(part)


def test_a_plot_is_an_image_file(tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "mrr.png"
    report.save_plot([*COCOCN, row("cm", split="val")], path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_an_interval_that_excludes_its_value_can_be_plotted(tmp_path):
    pytest.importorskip("matplotlib")
    figure = Figure(0.5, 0.6, 0.7)
    report.save_plot(
        [ResultRow("s", "zh", "cm", None, "t2i", 1, 1, {"mrr": figure})], tmp_path / "a.png"
    )


def test_a_plot_of_an_unknown_type_is_refused():
    with pytest.raises(DataProblem, match=r"written as \.png, \.svg, \.pdf, not mrr\.doc"):
        report.check_plot(report.Path("mrr.doc"))


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(report, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"capsearch\[bench\]"):
        report.check_plot(report.Path("mrr.png"))
