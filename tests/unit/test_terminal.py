"""What the parts of the command line share: pages that fit, colour where it is wanted, how far a long reading is."""

import io
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from denpexd import terminal
from denpexd.cli import main
from denpexd.core.rule import Catalog
from denpexd.diagnose import Diagnosis
from denpexd.notify.text import cells
from denpexd.terminal import Progress, table


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return terminal.catalogue()


CASE = Path(__file__).parents[1] / "cases" / "lab-syncbn-barrier-n2"
COPIED = re.compile(r"^ *(?:\$|https?://|denpexd explain|│)")  # commands, links and code: there to be copied


class Screen(io.StringIO):
    """Standard error that says whether it is a terminal."""

    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


class TestTable:
    def test_cells_stand_below_each_other_and_empty_columns_are_left_out(self) -> None:
        rows = [("a", "", "one"), ("bcd", "", "two")]
        assert table(("X", "Y", "Z"), rows, 80) == ["X    Z", "a    one", "bcd  two"]
        assert table((), rows, 80) == ["a    one", "bcd  two"]
        assert table(("X", "Y"), [], 80) == []

    def test_the_last_column_is_wrapped_before_anything_is_cut(self) -> None:
        lines = table(("FILE", "WHY"), [("rank0.log", "a reason that does not fit into one line of it")], 40)
        assert lines[1:] == ["rank0.log  a reason that does not fit", "           into one line of it"]

    def test_too_narrow_for_a_table_it_becomes_a_list(self) -> None:
        rows = [("run-7", "failed", "3 waiting, 1 failed", "something else that is long")]
        lines = table(("JOB", "STATE", "RANKS", "MORE"), rows, 30)
        assert lines[:2] == ["run-7", "  state  failed"]
        assert "  more   something else that" in lines

    @given(
        st.lists(st.lists(st.text("ab é-", max_size=60), min_size=3, max_size=3), min_size=1, max_size=4),
        st.integers(40, 120),
        st.booleans(),
    )
    def test_no_line_runs_over_the_edge(self, rows: list[list[str]], width: int, headed: bool) -> None:
        for line in table(("ONE", "TWO", "THREE") if headed else (), rows, width):
            assert cells(line) <= width


class TestWidth:
    @pytest.mark.parametrize(("columns", "width"), [("20", 40), ("40", 40), ("64", 64), ("200", 120)])
    def test_pages_are_as_wide_as_the_terminal_within_reason(
        self, monkeypatch: pytest.MonkeyPatch, columns: str, width: int
    ) -> None:
        monkeypatch.setenv("COLUMNS", columns)
        assert terminal.width() == width

    @pytest.mark.parametrize(
        "command",
        [
            ("diagnose", str(CASE)),
            ("explain", "syncbatchnorm-single-rank-eval-deadlock"),
            ("search", "CUDA out of memory. Tried to allocate 2.50 GiB"),
            ("rules", "list"),
        ],
        ids=lambda command: command[0],
    )
    def test_reports_fit_a_narrow_terminal(
        self, monkeypatch: pytest.MonkeyPatch, catalog: Catalog, command: tuple[str, ...]
    ) -> None:
        for place in ("denpexd.cli", "denpexd.cli_encyclopedia", "denpexd.cli_rules"):
            monkeypatch.setattr(f"{place}.catalogue", lambda packs=(): catalog)
        for place in ("denpexd.terminal", "denpexd.cli"):
            monkeypatch.setattr(f"{place}.whole", lambda: False)
        output = CliRunner().invoke(main, [*command], env={"COLUMNS": "40"}).output
        over = [line for line in output.splitlines() if cells(line) > 40 and not COPIED.match(line)]
        if command[0] == "explain":  # code to be pasted stands as it was written
            over = [line for line in over if not line.startswith("    ")]
        assert over == []
        assert len(output.splitlines()) > 10


class TestColour:
    def test_a_real_terminal_gets_none_where_no_color_is_set(self) -> None:
        leader, follower = pty.openpty()
        try:
            subprocess.run(
                [sys.executable, "-m", "denpexd", "explain", "cuda-out-of-memory"],
                env={**os.environ, "NO_COLOR": "1", "COLUMNS": "40"},
                stdout=follower, stderr=follower, check=True, cwd=Path(__file__).parents[2], timeout=250,
            )  # fmt: skip
            assert b"\x1b[" not in os.read(leader, 1 << 12)
        finally:
            os.close(leader)
            os.close(follower)

    def test_an_empty_no_color_is_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "stdout", Screen(True))
        monkeypatch.setenv("NO_COLOR", "")
        assert terminal.color()
        monkeypatch.setenv("NO_COLOR", "0")
        assert not terminal.color()
        assert not terminal.color(no_color=True)


class TestProgress:
    def said(self, monkeypatch: pytest.MonkeyPatch, *steps: int, total: int, is_terminal: bool = True) -> str:
        screen = Screen(is_terminal)
        monkeypatch.setattr(sys, "stderr", screen)
        monkeypatch.setenv("COLUMNS", "60")
        progress = Progress()
        for done in steps:
            progress(done, total)
        progress.clear()
        return screen.getvalue()

    def test_a_long_reading_shows_how_far_it_is_and_leaves_nothing_behind(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        half = 50 << 20
        said = self.said(monkeypatch, half, half + 1, 2 * half, total=2 * half)
        lines = said.split("\r\x1b[K")
        assert lines[1] == "█" * 15 + "░" * 15 + "  50 % of 100 MiB"
        assert lines[2].endswith(" judging")
        assert len(lines) == 4
        assert lines[3] == ""
        assert all(cells(line) <= 60 for line in lines)

    def test_a_short_one_and_a_pipe_show_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.said(monkeypatch, 1 << 20, total=Progress.MUCH - 1) == ""
        assert self.said(monkeypatch, 1 << 20, total=Progress.MUCH, is_terminal=False) == ""

    def test_a_diagnosis_tells_how_much_of_all_it_has_read(self, tmp_path: Path, catalog: Catalog) -> None:
        for rank in (0, 1):
            (tmp_path / f"rank{rank}.log").write_text("step 1 loss 2.0\n" * 1000)
        told: list[tuple[int, int]] = []
        diagnosis = Diagnosis(catalog, progress=lambda done, total: told.append((done, total)))
        diagnosis.paths([str(tmp_path)], io.BytesIO())
        assert [done for done, _ in told] == sorted({done for done, _ in told})
        assert told[-1] == (32_000, 32_000)
