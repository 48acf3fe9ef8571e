"""Which processes are ranks: environments of every launcher, and trees of processes that inherit them."""

from hypothesis import given
from hypothesis import strategies as st

from denpexd.evidence.ranks import Identity, Row, choose, identify

TORCHRUN = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "node0", "MASTER_PORT": "29500"}


def row(pid, parent, env=None, *, python=True, launcher=False, helper=False, state="S", start=None):
    identity = identify(env) if env else None
    return Row(pid, parent, pid if start is None else start, state, 0, 1, identity, python, launcher, helper)


def mains(*rows, **more):
    return [(found.identity.rank, found.row.pid) for found in choose({r.pid: r for r in rows}, **more)]


def test_torchruns_environment_gives_rank_world_and_a_job_named_by_its_address():
    assert identify(TORCHRUN) == Identity(0, 3, 1, 4, "node0:29500", None, 0)


def test_a_run_id_names_the_job_and_the_port_does_not_because_it_changes_with_a_restart():
    first = identify({**TORCHRUN, "TORCHELASTIC_RUN_ID": "run7", "SLURM_JOB_ID": "12"})
    second = identify(
        {
            **TORCHRUN,
            "MASTER_PORT": "31000",
            "TORCHELASTIC_RUN_ID": "run7",
            "SLURM_JOB_ID": "12",
            "TORCHELASTIC_RESTART_COUNT": "1",
        }
    )
    assert first is not None
    assert second is not None
    assert (first.job, first.run_id, first.restart) == ("slurm 12 run run7", "run7", 0)
    assert (second.job, second.restart) == (first.job, 1)


def test_torchruns_default_run_id_is_no_name():
    identity = identify({**TORCHRUN, "TORCHELASTIC_RUN_ID": "none"})
    assert identity is not None
    assert (identity.job, identity.run_id) == ("node0:29500", None)


def test_starters_of_processes_are_understood():
    slurm = identify(
        {"SLURM_PROCID": "9", "SLURM_LOCALID": "1", "SLURM_NTASKS": "16", "SLURM_JOB_ID": "5", "SLURM_STEP_ID": "0"}
    )
    openmpi = identify({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "0"})
    mpich = identify({"PMI_RANK": "1", "PMI_SIZE": "2"})
    pod = identify({"JOB_COMPLETION_INDEX": "6", "WORLD_SIZE": "8"})
    assert slurm == Identity(3, 9, 1, 16, "slurm 5 step 0")
    assert openmpi is not None
    assert (openmpi.rank, openmpi.local_rank, openmpi.world_size) == (2, 0, 4)
    assert mpich is not None
    assert (mpich.rank, mpich.world_size) == (1, 2)
    assert pod is not None
    assert pod.rank == 6


def test_what_torch_reads_wins_over_what_the_scheduler_says():
    identity = identify({**TORCHRUN, "SLURM_PROCID": "0", "OMPI_COMM_WORLD_RANK": "0"})
    assert identity is not None
    assert identity.rank == 3


def test_a_pods_index_without_a_world_is_no_rank_and_nonsense_is_none():
    assert identify({"JOB_COMPLETION_INDEX": "6"}) is None
    assert identify({"RANK": "-1"}) is None
    assert identify({"RANK": "two"}) is None
    assert identify({"RANK": "99999999999999"}) is None
    assert identify({"RANK": "²"}) is None


def test_a_rank_outside_its_world_leaves_the_world_unknown():
    identity = identify({"RANK": "5", "WORLD_SIZE": "4"})
    assert identity is not None
    assert (identity.rank, identity.world_size) == (5, None)


def test_workers_that_inherit_the_environment_are_not_ranks_but_workers():
    env = TORCHRUN
    found = choose(
        {
            r.pid: r
            for r in (
                row(1, 0),
                row(10, 1, launcher=True),
                row(20, 10, env),
                row(21, 20, env),
                row(22, 20, env, helper=True),
                row(23, 21, env),
                row(24, 20, env, python=False),
                row(25, 20, env, state="Z"),
            )
        }
    )
    assert [(f.identity.rank, f.row.pid, f.workers) for f in found] == [(3, 20, (21, 23))]


def test_a_shell_above_python_gives_way_to_the_python():
    env = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}
    assert mains(row(10, 1, env, python=False), row(11, 10, env, python=False), row(12, 11, env), row(13, 12, env)) == [
        (1, 12)
    ]


def test_a_process_that_lost_the_environment_in_between_does_not_split_a_rank():
    assert mains(row(10, 1, TORCHRUN), row(11, 10), row(12, 11, TORCHRUN)) == [(3, 10)]


def test_a_launcher_in_a_pod_whose_rank_is_the_nodes_is_no_rank():
    pod = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "m", "MASTER_PORT": "1"}
    ranks = [{**pod, "RANK": str(n), "LOCAL_RANK": str(n), "WORLD_SIZE": "4"} for n in range(2)]
    rows = [
        row(1, 0, pod, python=False),
        row(7, 1, pod),
        row(8, 1, pod),  # a program beside the launcher, in the same pod
        row(20, 7, ranks[0]),
        row(21, 7, ranks[1]),
        row(22, 20, ranks[0]),
    ]
    assert mains(*rows) == [(0, 20), (1, 21)]


def test_a_launcher_under_slurm_is_no_rank():
    task = {"SLURM_PROCID": "1", "SLURM_JOB_ID": "5"}
    assert mains(row(7, 1, task), row(8, 7, {**TORCHRUN, **task})) == [(3, 8)]


def test_a_known_launcher_is_no_rank_even_before_it_started_any():
    assert mains(row(7, 1, {"SLURM_PROCID": "1"}, launcher=True)) == []


def test_a_launcher_that_hands_its_own_environment_down_is_stepped_over():
    assert mains(row(7, 1, TORCHRUN, launcher=True), row(8, 7, TORCHRUN)) == [(3, 8)]


def test_a_shell_with_an_exported_rank_is_no_rank_but_a_native_trainer_is():
    assert mains(row(7, 1, {"RANK": "0"}, python=False)) == []
    assert mains(row(7, 1, {"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, python=False)) == []
    assert mains(row(7, 1, TORCHRUN, python=False)) == [(3, 7)]


def test_dead_processes_are_no_ranks():
    assert mains(row(7, 1, TORCHRUN, state="Z"), row(8, 1, TORCHRUN, state="X")) == []


def test_the_newest_attempt_is_the_rank_then_the_oldest_process():
    env = {**TORCHRUN, "TORCHELASTIC_RUN_ID": "r"}
    again = {**env, "TORCHELASTIC_RESTART_COUNT": "1"}
    assert mains(row(30, 1, env, start=10), row(40, 1, again, start=50), row(41, 1, again, start=60)) == [(3, 40)]


def test_two_jobs_on_one_node_are_kept_apart():
    other = {**TORCHRUN, "MASTER_PORT": "29501"}
    found = choose({7: row(7, 1, TORCHRUN), 8: row(8, 1, other)})
    assert [(f.identity.job, f.row.pid) for f in found] == [("node0:29500", 7), ("node0:29501", 8)]


def test_only_what_descends_from_the_root_counts_when_one_is_given():
    rows = (row(5, 1), row(7, 5, TORCHRUN), row(8, 1, {**TORCHRUN, "RANK": "0"}))
    assert mains(*rows, root=5) == [(3, 7)]
    assert mains(*rows, root=7) == [(3, 7)]
    assert mains(*rows, root=99) == []


def test_barred_processes_never_become_a_rank():
    assert mains(row(7, 1, TORCHRUN), barred={(7, 7)}) == []


@given(
    st.dictionaries(
        st.integers(1, 12),
        st.tuples(st.integers(0, 12), st.integers(-1, 3), st.booleans(), st.booleans(), st.sampled_from("SRDTZ")),
        max_size=12,
    )
)
def test_any_table_however_torn_gives_each_rank_at_most_one_living_process(processes):
    table = {
        pid: row(
            pid,
            parent,
            {**TORCHRUN, "RANK": str(rank)} if rank >= 0 else None,
            python=python,
            launcher=launcher,
            state=state,
        )
        for pid, (parent, rank, python, launcher, state) in processes.items()
    }
    found = choose(table)
    assert len({(f.identity.job, f.identity.rank) for f in found}) == len(found)
    assert all(f.row.state != "Z" and not f.row.launcher for f in found)
    taken = {f.row.pid for f in found}
    assert all(not taken & set(f.workers) for f in found)
