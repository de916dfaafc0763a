//! The safe NCCL layer on real GPUs: all of the machine's, against results computed on the host.

#![allow(clippy::unwrap_used, clippy::panic, reason = "all of this is tests, though not marked as such")]

mod case;
mod collectives;
#[path = "../gpu/mod.rs"]
mod gpu;
mod gpus;
mod graphs;
mod membership;
mod memory;
mod reference;

fn main() {
    gpu::run(gpu::tests! {
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
            memory::every_collective_over_windows,
            memory::windows_of_all_ranks_in_one_thread,
            memory::raw_buffers,
            graphs::every_collective_in_graphs,
            graphs::a_graph_launched_ten_times,
            graphs::a_graph_over_all_gpus_launched_ten_times,
            graphs::a_capture_of_ones_own,
            graphs::a_graph_of_a_non_blocking_communicator,
            membership::a_communicator_whose_peers_never_come,
        ],
        2 => [
            memory::one_sided_writes_and_signals,
            membership::split,
            membership::split_of_all_ranks_in_one_thread,
            membership::shrink,
            membership::grow,
            membership::creation_with_several_ids,
            membership::pending_communicators,
        ],
    });
}
