"""Each row of docs/differences.md has a test that shows it, or it goes.

Rows are known by how they begin. A test that is renamed or removed, a row that is
added or changed: this list changes with it.
"""

import pathlib
import re

import pytest

TESTS = pathlib.Path(__file__).resolve().parent
PAGE = TESTS.parent / "docs" / "differences.md"
PARALLEL, SINGLE = "python/parallel", "python/single"
SURFACE = f"{SINGLE}/horovod_surface_test.py"
IDIOMS = f"{PARALLEL}/horovod_idioms_test.py"
GRADIENTS = f"{PARALLEL}/gradients_test.py"
HOROVOD_GRADIENTS = f"{PARALLEL}/horovod_gradients_test.py"
OWN = f"{PARALLEL}/differences_test.py"
KERAS = f"{PARALLEL}/keras_optimizer_test.py"
ABSENT = f"{SURFACE}::test_what_cannot_be_there_says_why"

ROWS = {
    "Names and start": {
        "`import horovod.tensorflow as hvd`": "cli/as_horovod_test.py::"
        "test_a_horovod_script_runs_unchanged",
        "`horovodrun`: MPI": "cli/horovodrun_test.py::"
        "test_each_flag_is_honoured_or_told_what_replaces_it",
        "`horovod.run(func)`": "cli/run_function_test.py::test_the_folder_is_private_and_goes",
        "`horovod.run`: the first": "cli/run_function_test.py::"
        "test_an_exception_of_a_rank_is_raised_here",
        "`horovodrun python": "cli/joined_test.py::test_two_serial_trainings_are_told",
        "`horovod.torch`": ABSENT,
        "`elastic`": ABSENT,
        "`start_timeline`": f"{IDIOMS}::test_timeline_says_that_there_is_none",
        "`_basics.MPI_LIB_CTYPES`": f"{IDIOMS}::test_basics_of_mpi_ops",
        "`HorovodVersionMismatchError": f"{SURFACE}::"
        "test_all_public_tf_and_keras_names_and_signatures_of_horovod",
        "`from horovod.tensorflow import *`": f"{IDIOMS}::test_files_and_star_imports",
        "each `HOROVOD_*`": f"{SINGLE}/horovod_variables_test.py::"
        "test_every_variable_that_horovod_reads_is_in_the_table_and_on_the_page",
        "Gloo, oneCCL": f"{SINGLE}/surface_test.py::test_what_is_built",
        "a controller thread": f"{OWN}::test_an_idle_job_sleeps",
        "a count of processes": f"{SINGLE}/horovod_variables_test.py::"
        "test_processes_of_horovods_own_launcher_do_not_train_alone",
        "`init(comm=[...])`": f"{SINGLE}/process_sets_test.py::"
        "test_a_process_that_the_list_leaves_out",
        "`hvd.BroadcastGlobalVariablesHook`": f"{PARALLEL}/variables_test.py::"
        "test_hook_with_monitored_session",
        "stall warning": "faults/ends_test.py::test_a_call_is_missing",
        "a second `init()`": f"{SINGLE}/process_sets_test.py::test_init_again_under_mpi4py",
    },
    "Collectives": {
        "`broadcast_variables(model.variables)`": f"{PARALLEL}/keras_callbacks_test.py::"
        "test_random_layers_keep_their_own_numbers",
        "ops are stateless": f"{SINGLE}/registration_test.py::"
        "test_equal_calls_in_a_function_are_not_merged",
        "eager calls": f"{PARALLEL}/graph_test.py::test_eager_names_are_honoured",
        "iterations of a loop": f"{PARALLEL}/graph_test.py::"
        "test_iterations_of_a_loop_meet_their_own",
        "a parallel `tf.data`": f"{PARALLEL}/errors_test.py::"
        "test_parallel_dataset_function_is_refused",
        "a result that is not used": f"{SINGLE}/registration_test.py::"
        "test_a_call_whose_result_is_unused_runs",
        "float16 sums": f"{PARALLEL}/allreduce_test.py::test_half_precisions_are_summed_in_float32",
        "sums depend": f"{PARALLEL}/graph_test.py::test_same_bits_in_every_run",
        "types: ten": f"{PARALLEL}/table_test.py::test_defined_cells",
        "`prescale_factor`": f"{PARALLEL}/allreduce_test.py::test_factors_are_float64",
        "2^31 elements": f"{PARALLEL}/allreduce_test.py::test_more_than_2_to_the_31_elements",
        "`barrier`": f"{PARALLEL}/synchronize_test.py::test_nobody_leaves_before_all_have_come",
        "`join()` is for the world": f"{OWN}::test_join_takes_a_process_set",
        "after a `join`": f"{PARALLEL}/errors_test.py::"
        "test_what_needs_every_rank_fails_after_a_join",
        "`reducescatter`": f"{PARALLEL}/exchange_test.py::test_reducescatter_min_max_product",
        "the op of `alltoall`": f"{OWN}::test_received_splits_without_splits",
        "process sets can be added": f"{PARALLEL}/process_sets_test.py::test_come_and_go",
        "a number that no set has": f"{IDIOMS}::test_a_registered_set_with_a_wrong_id",
        "numbers of removed sets": f"{PARALLEL}/process_sets_test.py::test_come_and_go",
        "sets from mpi4py": f"{SINGLE}/process_sets_test.py::test_communicators_of_mpi4py",
        "sets given to `init`": f"{SINGLE}/process_sets_test.py::test_sets_of_init_must_agree",
        "no `cross_rank_op`": f"{SINGLE}/registration_test.py::"
        "test_topology_is_read_when_the_graph_runs",
    },
    "Sparse gradients (`IndexedSlices`)": {
        "all ranks' rows": f"{PARALLEL}/sparse_test.py::test_each_index_once_in_ascending_order",
        "always two allgathers": f"{PARALLEL}/sparse_test.py::test_what_is_shorter_is_sent",
        "with scales": f"{PARALLEL}/sparse_test.py::"
        "test_both_ways_and_the_dense_allreduce_have_the_same_bits",
        "values are not compressed": f"{PARALLEL}/sparse_test.py::"
        "test_duplicates_and_compression_count_as_what_is_sent",
        "the average of integer": f"{OWN}::test_integer_slices_are_averaged_as_integers",
        "`grouped_allreduce`": f"{PARALLEL}/sparse_test.py::test_mixed_group",
    },
    "Derivatives": {
        "allgather, broadcast": f"{HOROVOD_GRADIENTS}::test_allgather",
        "reducescatter, groups": f"{HOROVOD_GRADIENTS}::test_reducescatter",
        "allreduce Min": f"{GRADIENTS}::test_allreduce_and_reducescatter",
        "reducescatter Min": f"{GRADIENTS}::test_allreduce_and_reducescatter",
        "alltoall": f"{GRADIENTS}::test_alltoall",
        "groups of allgather": f"{OWN}::test_the_gradient_of_a_group_is_one_request",
        "second derivatives": f"{GRADIENTS}::test_second_derivative_is_that_of_differences",
    },
    "Optimizers and tapes": {
        "metrics are averaged": f"{PARALLEL}/keras_fit_test.py::"
        "test_drift_by_reduce_lr_before_metric_average",
        "ranks of a `fit`": f"{PARALLEL}/keras_fit_test.py::"
        "test_stall_when_a_rank_has_one_batch_more",
        "a LearningRateSchedule": f"{PARALLEL}/keras_callbacks_test.py::"
        "test_learning_rate_schedule_objects_are_refused",
        "Keras 3: `fit`": f"{PARALLEL}/keras_training_test.py::test_ranks_train_as_one_worker",
        "the class of a wrapped": f"{KERAS}::test_the_instance_stays_what_it_is",
        "`optimizer._allreduce": f"{IDIOMS}::test_keras_optimizers_have_allreduce",
        "a gradient that is not finite": f"{KERAS}::test_all_ranks_skip_together",
        "buckets by time": f"{PARALLEL}/optimizer_test.py::test_buckets_by_dtype_and_size",
        "`tf_hvd.DistributedOptimizer` of": f"{KERAS}::test_sum_of_the_delegating_name",
        "`groups` match": f"{KERAS}::test_groups_of_variables",
        "`backward_passes_per_step` counts": f"{OWN}::test_v1_passes_count_updates",
        "`backward_passes_per_step` in eager": f"{OWN}::test_v1_passes_in_eager_mode",
        "Adasum needs": f"{PARALLEL}/adasum_test.py::test_process_set",
        "`DistributedOptimizer(keras_optimizer)`": f"{KERAS}::test_apply_gradients_by_hand",
        "duplicate rows": f"{OWN}::test_duplicate_rows_are_summed_before_keras_squares_them",
        "Keras callbacks": f"{PARALLEL}/keras_callbacks_test.py::"
        "test_broadcast_before_the_first_update",
        "momentum correction": f"{PARALLEL}/keras_callbacks_test.py::"
        "test_momentum_correction_scales_the_velocity",
        "a saved `SyncBatchNormalization`": f"{PARALLEL}/sync_batch_norm_test.py::"
        "test_a_loaded_model_goes_on_with_the_batches_of_all_ranks",
        "`SyncBatchNormalization`": f"{PARALLEL}/sync_batch_norm_test.py::test_as_one_large_batch",
    },
    "Errors": {
        "shut down": "faults/ends_test.py::test_a_rank_raises",
        "group order": f"{PARALLEL}/allreduce_test.py::test_members_in_another_order_are_noticed",
        "a mistake on one rank": f"{PARALLEL}/errors_test.py::"
        "test_allgather_of_a_scalar_on_one_rank_fails_all",
    },
}


def rows_of(text):
    """The first cell of each row of the tables, by section."""
    found = {}
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        title, _, body = section.partition("\n")
        tables = re.findall(r"^\|(?!---).*\|\n\|---[|-]*\n((?:\|.*\n)*)", body, re.MULTILINE)
        rows = [line[2:] for table in tables for line in table.splitlines()]
        if rows:
            found[title] = rows
    return found


def faults(page, listed):
    """Rows without a test, tests without a row."""
    texts = []
    for section, rows in page.items():
        starts = listed.get(section, {})
        for row in rows:
            known = [start for start in starts if row.startswith(start)]
            if len(known) != 1:
                texts.append(f"{section}: {row[:60]!r} is known by {known}")
        texts += [
            f"{section}: no row begins with {start!r}"
            for start in starts
            if not any(row.startswith(start) for row in rows)
        ]
    return texts + [f"no section {section!r}" for section in listed if section not in page]


def test_each_row_has_a_test():
    assert faults(rows_of(PAGE.read_text()), ROWS) == []


@pytest.mark.parametrize("shown", sorted({t for rows in ROWS.values() for t in rows.values()}))
def test_the_tests_are_there(shown):
    path, name = shown.split("::")
    assert f"\ndef {name}(" in (TESTS / path).read_text()


def test_a_fault_is_found():
    page = rows_of("## A\n| x | y |\n|---|---|\n| one | 1 |\n| two | 2 |\n")
    assert page == {"A": ["one | 1 |", "two | 2 |"]}
    assert faults(page, {"A": {"one": "", "two": ""}}) == []
    assert len(faults(page, {"A": {"one": ""}})) == 1
    assert len(faults(page, {"A": {"one": "", "two": "", "three": ""}})) == 1
    assert len(faults(page, {"A": {"one": "", "two": ""}, "B": {}})) == 1
