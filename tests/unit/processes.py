"""Files of tests that start programs, and which of their tests run for each change: one or two of each kind.

The others run when what they test has changed (`tools/test.py --since`), and at night.
"""

from __future__ import annotations

PROCESSES: dict[str, set[str]] = {
    "local/test_run_command.py": {
        "test_all_ranks_find_each_other_and_the_job_succeeds",
        "test_a_script_runs_without_a_manifest",
        "test_a_killed_rank_restarts_the_group_and_is_named",
        "test_ranks_restart_in_their_pods_with_a_log_for_each_attempt",
        "test_a_bug_fails_the_job_with_its_last_lines_and_the_path_of_the_log",
        "test_a_signal_ends_all_ranks_gracefully",
        "test_kill_9_of_allranks_itself_leaves_no_process",
        "test_dry_run_prints_the_same_pods_every_time_and_starts_nothing",
        "test_stdout_is_only_the_status_and_messages_go_to_stderr",
        "test_a_bad_manifest_is_rejected_with_every_error_and_its_path",
    },
    "local/test_pod.py": {
        "test_exit_codes_are_those_a_kubelet_reports",
        "test_a_command_that_does_not_exist_is_a_start_error_that_names_it",
        "test_the_log_contains_every_byte_of_binary_output",
        "test_processes_left_behind_are_killed_when_the_first_process_ends",
        "test_the_whole_process_tree_is_killed_after_the_grace_period",
        "test_init_containers_run_one_after_the_other_before_the_rest",
        "test_phases_go_from_pending_to_running_to_the_end",
    },
    "local/test_local_code.py": {"test_the_ranks_run_a_copy_without_what_is_not_shipped"},
    "local/test_local_data.py": {"test_ranks_read_an_input_and_the_output_is_copied_with_its_provenance"},
    "local/test_resume_from.py": {
        "test_a_job_starts_from_the_newest_run_of_another_one_and_leaves_its_checkpoints_alone"
    },
    "local/test_sweep.py": {"test_the_manifest_of_the_best_trial_is_printed_and_stored_ready_to_run"},
    "local/verify/test_verify_command.py": {"test_a_program_that_resumes_well_is_trusted"},
    "sdk/test_run_function.py": {
        "test_the_value_of_rank_0_is_returned",
        "test_the_exception_of_the_rank_that_failed_first_is_raised_with_its_traceback",
        "test_arguments_that_do_not_fit_the_function_are_refused_before_anything_starts",
        "test_ctrl_c_ends_the_ranks_and_raises_keyboard_interrupt",
        "test_the_types_of_the_interface_are_those_of_its_names",
    },
    "data/test_pod.py": {
        "test_a_pod_fetches_what_ranks_then_mount",
        "test_a_pod_that_was_killed_is_continued_by_the_next_one",
        "test_a_pod_uploads_once_even_if_its_result_was_lost",
    },
    "data/test_init_containers.py": {
        "test_the_pods_of_a_node_fetch_once_and_those_of_another_node_once_more",
    },
    "inpod/test_automatic_reports.py": {
        "test_a_trainer_of_hugging_face_reports_steps_epochs_checkpoints_and_what_it_logs",
    },
    "inpod/test_call_function.py": {
        "test_the_value_of_rank_0_arrives_and_those_of_the_others_are_not_sent",
        "test_another_version_of_python_ends_the_rank_before_the_function_starts",
    },
    "inpod/test_copy_checkpoint.py": {"test_one_pod_copies_and_the_others_wait_for_it"},
    "inpod/test_horovod_elastic.py": {
        "test_the_ranks_of_all_workers_are_started_with_their_numbers",
        "test_a_worker_with_a_failed_rank_ends_with_its_status_and_the_others_continue",
    },
    "inpod/test_horovod_gloo.py": {
        "test_the_ranks_of_all_workers_are_started_with_their_numbers",
        "test_the_first_failed_rank_sets_the_exit_status_and_ends_the_others",
    },
    "inpod/test_install_packages.py": {
        "test_only_packages_are_installed_that_this_python_does_not_have",
    },
    "inpod/test_local_ranks.py": {
        "test_each_process_has_its_rank",
        "test_the_first_failure_ends_the_others_and_is_reported",
    },
    "inpod/test_mpi_rank.py": {"test_the_first_failure_is_chosen"},
    "inpod/test_ray_node.py": {
        "test_the_head_runs_the_program_in_its_cluster_and_ends_with_its_exit_code",
        "test_a_worker_waits_for_the_head_and_ends_with_its_pod",
    },
    "inpod/test_ray_train_reports.py": {
        "test_each_rank_of_ray_train_reports_its_metrics_checkpoints_and_own_work",
    },
    "inpod/test_supervisor.py": {
        "test_a_program_that_failed_starts_again_in_its_pod_with_the_variables_of_the_next_attempt",
        "test_nothing_of_an_attempt_is_left_when_the_pod_is_down",
        "test_a_pod_ends_with_its_program_if_the_operator_is_gone",
    },
    "inpod/test_watch.py": {
        "test_output_passes_unchanged",
        "test_signals_are_forwarded",
        "test_what_the_pattern_finds_is_reported",
    },
    "report/test_frameworks.py": {"test_pytorch_busy_time"},
    "report/test_programs.py": {
        "test_in_a_job_it_imports_the_standard_library_only",
        "test_the_last_report_is_sent_however_the_program_ends",
        "test_a_hung_main_thread_dumps_its_stack",
    },
    "ui/test_floods.py": {
        "test_bodies_of_any_size_are_refused_and_do_not_grow_the_process",
        "test_an_account_with_any_number_of_tokens_ends_no_watch_of_others",
        "test_half_requests_are_closed_and_others_are_answered_meanwhile",
    },
}
"""File -> the tests that run for each change."""
