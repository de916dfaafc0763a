//! Groups of groups, whose ranks exchange data.

use collectives::job::{Group, Job};
use cudarc::driver::CudaContext;

use crate::fake::{Fake, Knob, aborts};
use crate::shape::gpu::Gpu;
use crate::shape::loss::{Loss, a_lost_rank, cases};
use crate::shape::{
    dropped_parts, each_shape, messages_at_once, mixed_order, on_ranks, parts_at_once, reducers,
};

/// Makes the group of all ranks, each on a device of its own.
fn form(fake: &Fake) -> impl Fn(&Job) -> Group + Sync {
    let library = fake.library();
    move |job| job.group_on_gpu(library, &CudaContext::new(job.local_rank()).unwrap()).unwrap()
}

/// Fakes that move data.
fn fake() -> Fake {
    let fake = Fake::new();
    fake.set(Knob::MovesData, aborts::HANG);
    fake.set(Knob::OnlyMistakes, 1);
    fake
}

/// Runs `body` on two ranks, and on four.
fn on_groups(body: impl Fn(&Group) + Sync) {
    for ranks in [2, 4] {
        let fake = fake();
        for result in on_ranks(ranks, form(&fake), &body) {
            result.unwrap();
        }
    }
}

#[test]
fn each_part_of_each_shape_works() {
    on_groups(each_shape::<Gpu>);
}

#[test]
fn two_parts_are_used_at_once() {
    on_groups(parts_at_once::<Gpu>);
}

#[test]
fn messages_of_two_groups_are_exchanged_at_once() {
    on_groups(messages_at_once);
}

#[test]
fn operations_of_groups_and_parts_are_under_way_together() {
    on_groups(mixed_order::<Gpu>);
}

#[test]
fn parts_are_dropped_while_others_work() {
    on_groups(dropped_parts::<Gpu>);
}

#[test]
fn gradients_are_averaged_over_parts() {
    on_groups(reducers::<Gpu>);
}

#[test]
fn a_lost_rank_is_named_in_each_shape() {
    for case in cases(&[Loss::Ends, Loss::Panics]) {
        let fake = fake();
        // Operations that wait for an aborted rank complete with undefined data.
        fake.set(Knob::MovesData, aborts::MISLEAD);
        a_lost_rank::<Gpu>(4, form(&fake), case);
    }
}
