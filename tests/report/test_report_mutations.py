"""Do the report's checks see bugs? Most are ways to show a cell that can't count."""

import pytest
import test_report_matrix as matrix
from report_html import read, rows
from report_matrices import chosen_run
from report_pages import page_of
from report_samples import faulty_run

from mutations.planting import Mutation, planted


def no_barred_cell_is_drawn():
    drawn = [e for e in read(page_of(faulty_run)).elements if "plot" in e.classes]
    assert "9.87" not in "".join(e.attributes["aria-label"] for e in drawn)


def no_barred_cell_wins_a_square():
    assert "9.87" not in read(page_of(faulty_run)).text("crossover")


def barred_points_are_counted():
    text = read(page_of(faulty_run)).text("throughput")
    assert "9 points; not drawn, of cells that can't count: 3" in text


def no_barred_cell_is_taken_apart():
    assert len(rows(read(page_of(faulty_run)), "causes")) == 15


def a_prediction_has_a_valid_measurement():
    matrix.test_a_prediction_is_held_against_no_cell_that_cannot_count()


def screened_cells_do_not_win():
    assert read(page_of(chosen_run)).all("span", "selection", "win") == []


def void_rows_are_marked():
    marked = read(page_of(faulty_run)).all("tr", "cells", "void")
    assert len([e for e in marked if "does not count" in e.text or "failed" in e.text]) >= 2


def no_text_ends_the_data():
    matrix.test_no_text_ends_the_data_early("</script><script>alert(1)</script>")


MUTATIONS = (
    Mutation(
        "a line through what can't count",
        "ddtree.report.curves",
        (("None if cell is None or barred(cell) else cell for", "cell for"),),
        (no_barred_cell_is_drawn,),
        no_barred_cell_wins_a_square,
    ),
    Mutation(
        "a square won by what can't count",
        "ddtree.report.crossover",
        (("if cell.arm in arms and not barred(cell)]", "if cell.arm in arms]"),),
        (no_barred_cell_wins_a_square,),
        no_barred_cell_is_drawn,
    ),
    Mutation(
        "a front through what can't count",
        "ddtree.report.pareto",
        (("if not barred(cell)\n", "if True\n"),),
        (barred_points_are_counted,),
        no_barred_cell_wins_a_square,
    ),
    Mutation(
        "what can't count taken apart",
        "ddtree.report.causes",
        (("if not barred(cell) and _parts(cell) is not None]", "if _parts(cell) is not None]"),),
        (no_barred_cell_is_taken_apart,),
        no_barred_cell_wins_a_square,
    ),
    Mutation(
        "a prediction held against what can't count",
        "ddtree.report.selection",
        (
            (
                "if cell is None or barred(cell) or cell.speedup is None:",
                "if cell is None or cell.speedup is None:",
            ),
        ),
        (a_prediction_has_a_valid_measurement,),
        screened_cells_do_not_win,
    ),
    Mutation(
        "a screened cell shown as a win",
        "ddtree.report.selection",
        (("cell_values(run, cell, ranks=False)", "cell_values(run, cell, ranks=True)"),),
        (screened_cells_do_not_win,),
        void_rows_are_marked,
    ),
    Mutation(
        "a row that can't count unmarked",
        "ddtree.report.grid",
        (("tuple(values), bool(barred(cell)))", "tuple(values), False)"),),
        (void_rows_are_marked,),
        no_barred_cell_is_drawn,
    ),
    Mutation(
        "data that ends its own element",
        "ddtree.report.embed",
        (("text = text.replace(character, escape)", "pass"),),
        (no_text_ends_the_data,),
        void_rows_are_marked,
    ),
)


def test_every_check_passes_on_the_code_as_it_is():
    for mutation in MUTATIONS:
        for check in (*mutation.caught_by, mutation.harmless_to):
            check()


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_planted_bug_is_seen(mutation):
    page_of.cache_clear()
    with planted(mutation):
        for check in mutation.caught_by:
            with pytest.raises(mutation.error):
                check()
        mutation.harmless_to()
    page_of.cache_clear()
