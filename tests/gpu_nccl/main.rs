//! The safe NCCL layer on real GPUs: all of the machine's, against results computed on the host.

#![allow(clippy::unwrap_used, clippy::panic, reason = "all of this is tests, though not marked as such")]
#![allow(clippy::disallowed_methods, reason = "an error ends the test")]

mod arena;
mod case;
mod collectives;
mod copies;
#[path = "../gpu/mod.rs"]
mod gpu;
mod gpus;
mod graphs;
mod jobs;
mod killed_rank;
mod lifecycle;
mod memory;
#[path = "../port/mod.rs"]
mod port;
mod prepared;
mod reference;
mod settings;
#[path = "../shapes/mod.rs"]
mod shape;
mod shapes;
mod split;
mod streams;
mod training;

fn main() {
    killed_rank::run_if_rank();
    shapes::run_if_rank();
    let mut tests = gpu::tests! {
        1 => [
            collectives::every_collective_with_every_type_and_operator,
            collectives::collectives_of_several_megabytes,
            collectives::every_collective_in_groups_over_all_gpus_in_one_thread,
            collectives::every_collective_over_cudarcs_own_slices,
            collectives::groups_of_different_operations,
            collectives::a_simulated_group_launches_nothing,
            collectives::a_cancelled_group_launches_nothing,
            collectives::scaled_sums_with_scalars_on_host_and_device,
            collectives::scaled_sums_in_a_group,
            collectives::non_blocking_communicators_give_the_same_results,
            memory::every_collective_over_registered_memory,
            memory::parts_and_adopted_slices_registered_by_two_communicators,
            memory::every_collective_over_windows,
            memory::windows_of_all_ranks_in_one_thread,
            memory::memory_of_non_blocking_communicators,
            memory::windows_dropped_after_their_communicators,
            memory::raw_memory,
            memory::copies_that_cannot_be_ordered,
            graphs::every_collective_in_graphs,
            graphs::a_graph_launched_ten_times,
            graphs::a_graph_over_all_gpus_launched_ten_times,
            graphs::a_graph_refilled_between_launches,
            graphs::graphs_end_with_their_communicator,
            graphs::a_capture_of_ones_own,
            graphs::a_graph_of_a_non_blocking_communicator,
            prepared::every_collective_prepared,
            prepared::a_list_queued_ten_times,
            prepared::a_list_refilled_between_the_calls,
            prepared::a_list_on_a_captured_stream,
            prepared::a_list_of_a_non_blocking_communicator,
            prepared::lists_outlive_their_communicator,
            streams::buffers_of_other_streams,
            streams::work_of_other_streams_comes_before_and_after,
            streams::a_buffer_that_a_capture_under_way_has_read,
            settings::settings_of_the_loaded_version,
            settings::settings_of_calls,
            settings::parameters,
            lifecycle::finalize_then_close,
            lifecycle::suspend_and_resume,
            split::a_communicator_whose_peers_never_come,
            jobs::a_group_dropped_in_a_capture,
            jobs::a_context_object_without_counted_streams,
        ],
        2 => [
            shapes::threads,
            shapes::lost_threads,
            shapes::processes,
            shapes::lost_processes,
            jobs::operations,
            jobs::a_missing_rank,
            jobs::a_rank_that_left,
            training::averages,
            training::gradients_that_travel_as_bfloat16,
            training::sharded_steps,
            training::a_rank_that_leaves_out_a_step,
            memory::one_sided_writes_and_signals,
            split::split,
            split::split_of_all_ranks_in_one_thread,
            split::split_onto_streams_of_their_own,
            split::shrink,
            split::grow,
            split::creation_with_several_ids,
            split::pending_communicators,
            streams::the_host_does_not_wait,
            lifecycle::revoke_then_shrink,
            lifecycle::revoke_then_split,
            lifecycle::abort_of_a_graph_whose_peer_never_arrives,
            lifecycle::abort_of_a_collective_whose_peer_never_arrives,
            lifecycle::abort_of_a_non_blocking_collective_whose_peer_never_arrives,
            lifecycle::abort_while_nccl_connects_to_a_peer_that_never_arrives,
            killed_rank::shrink_after_the_death_of_the_last_rank,
            killed_rank::shrink_after_the_death_of_rank_0,
        ],
    };
    tests.push(gpu::unshared_test(
        "streams::communicators_on_other_streams",
        "the ranks of a GPU have one default stream, so they would wait for each other",
        streams::communicators_on_other_streams,
    ));
    gpu::run(tests);
}
