"""`denpexd discover`: every file that is found has a reason, and so has every one that is not."""

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from denpexd.cli import main
from denpexd.core.events import UNKNOWN_RANK
from denpexd.evidence.ranks import Claim
from denpexd.ingest.discover import Discovery, why_no_log
from denpexd.notify.text import cells
from denpexd.settings import Settings
from denpexd.whose import Discovered, Whose, as_text, look


class Held:
    """Processes that write these files, by file name."""

    def __init__(self, **ranks: int) -> None:
        self._ranks = ranks

    def claims(self, paths: Iterable[Path]) -> list[Claim]:
        return [Claim("", {path: self._ranks[path.stem] for path in paths if path.stem in self._ranks})]


def write(root: Path, **texts: str | bytes) -> None:
    for name, text in texts.items():
        path = root / name.replace("__", "/").replace("_log", ".log")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())


def whose(*paths: str | Path, job: str | None = None, processes: Held | None = None) -> dict[str, Whose]:
    found = look(Settings(paths=[str(path) for path in paths], job=job), processes or Held())
    return {Path(each.path).name: each for each in found.files}


def discover(*arguments: str, columns: int = 120) -> Result:
    return CliRunner().invoke(main, ["discover", *arguments], env={"COLUMNS": str(columns)})


def test_a_name_a_number_among_siblings_and_a_launcher_tell_the_rank(tmp_path: Path) -> None:
    for name in ("rank3.log", "run/none_abcd1234/attempt_0/1/stdout.log", "n/0.log", "n/1.log", "r/rank_2/out.log"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x\n")
    found = whose(tmp_path)
    assert (found["rank3.log"].rank, found["rank3.log"].why) == (3, "'rank3' in its name")
    assert found["stdout.log"].why == "torchrun's folder, counts within its node"
    assert (found["1.log"].rank, found["1.log"].why) == (1, "the number in its name")
    assert (found["out.log"].rank, found["out.log"].why) == (2, "'rank_2' in the folder rank_2")
    assert {each.job_why for each in found.values()} == {"the name of the folder"}


def test_a_template_and_a_name_that_was_given_tell_rank_and_job(tmp_path: Path) -> None:
    write(tmp_path, a__7_log="x\n")
    one = whose(tmp_path / "{job}" / "{rank}.log")["7.log"]
    assert (one.job, one.job_why, one.rank, one.why) == ("a", "{job} of the path", 7, "{rank} of the path")
    assert whose(tmp_path, job="mine")["7.log"].job_why == "given"


def test_a_launchers_own_output_belongs_to_the_run_beside_it(tmp_path: Path) -> None:
    folder = tmp_path / "logs" / "run9_abcd1234" / "attempt_0" / "0"
    folder.mkdir(parents=True)
    (folder / "stdout.log").write_text("x\n")
    (tmp_path / "logs" / "torchrun.log").write_text("x\n")
    found = whose(tmp_path / "logs")
    assert found["torchrun.log"].job == "run9"
    assert found["torchrun.log"].job_why == "the run that it lies beside"
    assert found["stdout.log"].job_why == "torchrun's run id"


def test_the_process_that_writes_a_file_goes_before_its_name(tmp_path: Path) -> None:
    write(tmp_path, rank0_log="x\n", train_log="x\n", all_log="x\n")
    found = whose(tmp_path, processes=Held(rank0=4, train=5, all=UNKNOWN_RANK))
    assert (found["rank0.log"].rank, found["rank0.log"].why) == (4, "the process of that rank writes it")
    assert found["train.log"].rank == 5
    assert (found["all.log"].rank, found["all.log"].why) == (UNKNOWN_RANK, "several ranks' processes write it")


def test_the_lines_of_a_merged_stream_name_its_ranks(tmp_path: Path) -> None:
    write(tmp_path, train_log="[rank0]: a\n[rank1]: b\n" + "filler\n" * 40_000 + "[rank5]: c\n", quiet_log="hello\n")
    found = whose(tmp_path)
    assert found["train.log"].lines == (0, 1, 5)
    assert found["train.log"].why == "a merged stream: its lines name ranks 0-1,5"
    assert found["quiet.log"].why == "no rank in its name or its lines yet"


def test_a_number_whose_siblings_do_not_count_from_zero_is_not_believed(tmp_path: Path) -> None:
    write(tmp_path, **{"job__7_log": "x", "job__8_log": "x"})
    one = whose(tmp_path)["7.log"]
    assert one.rank == UNKNOWN_RANK
    assert "not a rank as far as its siblings tell" in one.why


def test_what_cannot_be_used_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, rank0_log=bytes(range(8)) * 100, rank1_log="x\n")
    assert "is no text" in whose(tmp_path)["rank0.log"].why

    def refuse(self: object, path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("denpexd.ingest.links.Links.open", refuse)
    assert whose(tmp_path)["rank1.log"].why == "cannot be read: Permission denied"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("model.safetensors", "binary file"),
        ("requirements.txt", "known not to be a log"),
        ("notes.txt", "neither log, out"),
        ("README.md", "suffix .md"),
        ("train.log", ""),
        ("stdout", ""),
        ("console.txt", ""),
        ("rank3.txt", ""),
    ],
)
def test_why_a_file_is_no_log(name: str, why: str) -> None:
    assert why in why_no_log(name)
    assert bool(why) == bool(why_no_log(name))


def test_the_daemon_keeps_no_list_of_what_is_no_log(tmp_path: Path) -> None:
    write(tmp_path, rank0_log="x\n")
    (tmp_path / "README.md").write_text("x")
    discovery = Discovery([str(tmp_path)], None)
    assert len(discovery.scan()) == 1
    assert discovery._passed_over is None


def test_the_page_tells_files_job_by_job_and_what_was_left_out(tmp_path: Path) -> None:
    write(tmp_path, a__rank0_log="x\n", a__rank1_log="x\n", a__train_log="x\n")
    (tmp_path / "a" / "weights.pt").write_text("x")
    result = discover(str(tmp_path / "a"), columns=300)
    assert result.exit_code == 0
    assert "job a (the name of the folder): 3 files, ranks 0-1" in result.output
    assert f"in {tmp_path}/a" in result.output
    assert "rank0.log  0" in result.output
    assert "train.log  ?" in result.output
    assert "an archive or a binary file by its name" in " ".join(result.output.split())
    for columns in (40, 64):
        assert all(cells(line) <= columns for line in discover(str(tmp_path / "a"), columns=columns).output.split("\n"))


def test_scripts_get_all_of_it_as_json(tmp_path: Path) -> None:
    write(tmp_path, a__rank0_log="x\n", a__train_log="[rank0]: x\n[rank1]: x\n")
    (tmp_path / "a" / "x.bin").write_text("x")
    told = json.loads(discover(str(tmp_path / "a"), "--format", "json").stdout)
    assert [(row["rank"], row["lines"]) for row in told["files"]] == [(0, []), (None, [0, 1])]
    assert [Path(row["path"]).name for row in told["left_out"]] == ["x.bin"]


def test_nothing_there_is_no_success(tmp_path: Path) -> None:
    result = discover(str(tmp_path))
    assert result.exit_code == 1
    assert "no log file was found" in result.output
    result = discover()
    assert result.exit_code == 2
    assert "nothing to look at" in result.stderr


def test_of_many_files_the_screen_shows_some_and_says_how_many_more() -> None:
    files = [Whose(f"/logs/rank{n}.log", "a", "given", n, "'rank' in its name", "", None, 1) for n in range(64)]
    text = as_text(Discovered(files, {}, []), color=False, width=80)
    assert "ranks 0-63" in text
    assert "and 24 more: --format json" in text


def test_ranks_that_are_claimed_twice_are_told_once_with_the_number_of_files(tmp_path: Path) -> None:
    for run in ("one", "two"):
        write(tmp_path, **{f"{run}__rank{rank}_log": "x\n" for rank in range(3)})
    page = as_text(look(Settings(paths=[str(tmp_path)])), color=False, width=400)
    assert page.count("is claimed in") == 1
    assert "or use {job}/{rank} (6 files)" in page


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_secret_in_the_name_of_a_folder_or_file_is_hidden(tmp_path: Path, form: str) -> None:
    secret = "Zk3Qw9TbV7mN2cR5"
    folder = tmp_path / f"run-token={secret}"
    for name in ("rank0.log", "rank1.log", "model.safetensors", f"api_key={secret}.log"):
        folder.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"x\n")
    shown = discover(str(folder), "--format", form, columns=200)
    assert shown.exit_code == 0
    assert "run-token=[REDACTED:assignment]" in shown.stdout
    assert secret not in shown.output
