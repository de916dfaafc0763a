//! Groups of groups.

use super::on_every_rank;
use super::shape::host::{Host, on_host};
use super::shape::loss::lost_ranks;
use super::shape::{dropped_parts, each_shape, messages_at_once, mixed_order, parts_at_once, reducers};

/// Numbers of ranks.
const RANKS: [usize; 3] = [2, 4, 5];

fn on_groups(body: impl Fn(&collectives::job::Group) + Sync) {
    for ranks in RANKS {
        on_every_rank(ranks, &body);
    }
}

#[test]
fn each_part_of_each_shape_works() {
    on_groups(each_shape::<Host>);
}

#[test]
fn two_parts_are_used_at_once() {
    on_groups(parts_at_once::<Host>);
}

#[test]
fn messages_of_two_groups_are_exchanged_at_once() {
    on_groups(messages_at_once);
}

#[test]
fn operations_of_groups_and_parts_are_under_way_together() {
    on_groups(mixed_order::<Host>);
}

#[test]
fn parts_are_dropped_while_others_work() {
    on_groups(dropped_parts::<Host>);
}

#[test]
fn gradients_are_averaged_over_parts() {
    on_groups(reducers::<Host>);
}

#[test]
fn a_lost_rank_is_named_in_each_shape() {
    lost_ranks::<Host>(4, on_host);
}
