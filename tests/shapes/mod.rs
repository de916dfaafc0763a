//! Shapes of groups: bodies of tests for any backend, and two ranks or more. Each is called by all ranks,
//! with the group of all ranks of a job. Values come from the ranks of the job, so that a mix of two groups
//! is noticed.

#![allow(dead_code, reason = "not every program has all of these tests")]

#[cfg(feature = "nccl")]
pub(crate) mod gpu;
#[cfg(feature = "fabric")]
pub(crate) mod host;
pub(crate) mod loss;
mod works;

use std::thread;

use collectives::job::{Buffer, Group, Job, Work};
use collectives::{Element, Error, ReduceOp};
#[cfg(feature = "nccl")]
use cudarc::driver::DeviceRepr;

pub(crate) use works::works;

/// An element type of the tests.
#[cfg(not(feature = "nccl"))]
pub(crate) trait Value: Element {}
#[cfg(not(feature = "nccl"))]
impl<T: Element> Value for T {}
#[cfg(feature = "nccl")]
pub(crate) trait Value: Element + DeviceRepr {}
#[cfg(feature = "nccl")]
impl<T: Element + DeviceRepr> Value for T {}

/// A kind of memory of a group's buffers.
pub(crate) trait Memory: Sized {
    type Of<T: Value>: Buffer<Element = T>;

    /// All kinds that a rank of the group can use.
    fn all(group: &Group) -> Vec<Self>;

    fn upload<T: Value>(&self, values: &[T]) -> Self::Of<T>;

    fn download<T: Value>(&self, buffer: &Self::Of<T>) -> Vec<T>;

    /// The buffers of an operation, for use on this memory's stream.
    fn finish<B>(&self, work: Work<B>) -> Result<B, Error>;

    /// Averages gradients of parameters of these lengths in some steps of a reducer. `average` receives step,
    /// parameter and values.
    fn train(
        group: &Group,
        lens: &[usize],
        steps: usize,
        gradient: &dyn Fn(usize, usize) -> Vec<f32>,
        average: &dyn Fn(usize, usize, Vec<f32>),
    );
}

/// Runs `body` on a thread for each rank of a job, with the group that `form` makes. Returns the results by
/// rank; those of ranks that have panicked are errors.
pub(crate) fn on_ranks<T: Send>(
    ranks: usize,
    form: impl Fn(&Job) -> Group + Sync,
    body: impl Fn(&Group) -> T + Sync,
) -> Vec<thread::Result<T>> {
    let jobs = Job::new(collectives::world::single()).threads(ranks).unwrap();
    let (form, body) = (&form, &body);
    thread::scope(|scope| {
        let threads: Vec<_> = jobs.into_iter().map(|job| scope.spawn(move || body(&form(&job)))).collect();
        threads.into_iter().map(thread::ScopedJoinHandle::join).collect()
    })
}

/// A division of a group's ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// One part of all ranks.
    All,
    /// Even and odd ranks: 2 + 2 of four.
    Halves,
    /// The first rank, and the others: 1 + 3 of four.
    OneAndRest,
    /// [`OneAndRest`](Self::OneAndRest), and even and odd ranks of these parts: 1, and 2 + 1 of four.
    Nested,
    /// Two parts of all ranks.
    Twice,
    /// All ranks but the first, which has no color.
    WithoutFirst,
}

impl Shape {
    pub(crate) const EACH: [Self; 6] =
        [Self::All, Self::Halves, Self::OneAndRest, Self::Nested, Self::Twice, Self::WithoutFirst];

    /// This rank's parts of the group, in the order in which they are made.
    pub(crate) fn parts(self, group: &Group) -> Vec<Group> {
        let first_or_rest = |rank| Some(u32::from(rank > 0));
        match self {
            Self::All => vec![split(group, |_| Some(3)).unwrap()],
            Self::Halves => vec![split(group, parity).unwrap()],
            Self::OneAndRest => vec![split(group, first_or_rest).unwrap()],
            Self::Nested => {
                let part = split(group, first_or_rest).unwrap();
                let nested = split(&part, parity).unwrap();
                vec![part, nested]
            }
            Self::Twice => (0..2).map(|_| split(group, |_| Some(0)).unwrap()).collect(),
            Self::WithoutFirst => split(group, |rank| (rank > 0).then_some(7)).into_iter().collect(),
        }
    }
}

fn parity(rank: usize) -> Option<u32> {
    Some(rank as u32 % 2)
}

/// Splits a group by the colors of its ranks, and checks the part's ranks.
pub(crate) fn split(group: &Group, color: impl Fn(usize) -> Option<u32>) -> Option<Group> {
    let own = color(group.rank());
    let part = group.split(own).unwrap();
    assert_eq!(part.is_some(), own.is_some());
    if let Some(part) = &part {
        let same = (0..group.size()).filter(|&rank| color(rank) == own);
        assert_eq!(part.ranks(), same.map(|rank| group.ranks()[rank]).collect::<Vec<_>>());
        assert_eq!(part.ranks()[part.rank()], group.ranks()[group.rank()]);
        assert_eq!(part.backend(), group.backend());
    }
    part
}

/// Every part of every shape works, before and after its group.
pub(crate) fn each_shape<M: Memory>(group: &Group) {
    works::<M>(group);
    for shape in Shape::EACH {
        let parts = shape.parts(group);
        parts.iter().for_each(works::<M>);
        works::<M>(group);
        parts.iter().rev().for_each(works::<M>);
    }
    works::<M>(group);
}

/// Two parts are used at the same time, on a thread for each: two of all ranks, and the rows and columns of a
/// mesh.
pub(crate) fn parts_at_once<M: Memory>(group: &Group) {
    let row = |rank| Some(rank as u32 / 2);
    let meshes =
        [Shape::Twice.parts(group), [split(group, parity), split(group, row)].map(Option::unwrap).into()];
    for parts in &meshes {
        thread::scope(|scope| {
            for part in parts {
                scope.spawn(move || (0..3).for_each(|_| works::<M>(part)));
            }
        });
    }
}

/// Messages of two groups of all ranks, on a thread for each.
pub(crate) fn messages_at_once(group: &Group) {
    let other = split(group, |_| Some(0)).unwrap();
    let expected = |first: u8| (0..group.size()).map(|rank| vec![first; rank]).collect::<Vec<_>>();
    thread::scope(|scope| {
        for (group, first) in [(group, 1), (&other, 2)] {
            let expected = &expected;
            scope.spawn(move || {
                for _ in 0..50 {
                    let messages = group.all_gather_bytes(&vec![first; group.rank()]).unwrap();
                    assert_eq!(messages, expected(first));
                }
            });
        }
    });
}

/// Operations of a group and of its parts are under way at the same time.
pub(crate) fn mixed_order<M: Memory>(group: &Group) {
    let parts = Shape::EACH.map(|shape| shape.parts(group));
    let own = group.ranks()[group.rank()] as i64;
    let sum = |group: &Group| group.ranks().iter().sum::<usize>() as i64;
    for round in 0..5 {
        for memory in M::all(group) {
            let reduce = |group: &Group| group.all_reduce(memory.upload(&[own + round; 1001]), ReduceOp::Sum);
            let mut under_way = Vec::new();
            for parts in &parts {
                under_way.extend(parts.iter().map(|part| (part, reduce(part))));
                under_way.push((group, reduce(group)));
            }
            // The last ones first.
            for (group, work) in under_way.into_iter().rev() {
                let reduced = memory.download(&memory.finish(work).unwrap());
                assert_eq!(reduced, [sum(group) + round * group.size() as i64; 1001]);
            }
        }
    }
}

/// Ranks drop their parts at different times, while their group and other parts work.
pub(crate) fn dropped_parts<M: Memory>(group: &Group) {
    for first in 0..2 {
        // One half drops its part at once.
        let [part] = <[Group; 1]>::try_from(Shape::Halves.parts(group)).unwrap();
        works::<M>(&part);
        if group.rank() % 2 == first {
            drop(part);
        } else {
            (0..3).for_each(|_| works::<M>(&part));
        }
        works::<M>(group);

        // One rank keeps the parts that the others drop.
        let parts = Shape::Twice.parts(group);
        parts.iter().for_each(works::<M>);
        let kept = (group.rank() == first).then_some(parts);
        works::<M>(group);
        drop(kept);
        works::<M>(group);
    }
}

/// Data parallel inside of tensor parallel: gradients are averaged over one part, activations summed over
/// another one.
pub(crate) fn reducers<M: Memory>(group: &Group) {
    const LENS: [usize; 4] = [40, 3, 1700, 200];
    let (tensor, data) = (split(group, |rank| Some(rank as u32 / 2)).unwrap(), split(group, parity).unwrap());
    let value = |rank: usize, step: usize, index: usize, element: usize| {
        ((rank + 1) * (step + 1) + (index + 3 * element) % 101) as f32
    };
    let own = group.ranks()[group.rank()];
    let gradient = |step, index| {
        let mut activations = vec![own as f32; 300];
        tensor.all_reduce_in_place(&mut activations, ReduceOp::Sum).unwrap();
        assert_eq!(activations, vec![tensor.ranks().iter().sum::<usize>() as f32; 300]);
        (0..LENS[index]).map(|element| value(own, step, index, element)).collect()
    };
    M::train(&data, &LENS, 4, &gradient, &|step, index, averages| {
        assert_eq!(averages.len(), LENS[index]);
        for (element, &found) in averages.iter().enumerate() {
            let sum: f32 = data.ranks().iter().map(|&rank| value(rank, step, index, element)).sum();
            let mean = sum / data.size() as f32;
            assert!(
                (found - mean).abs() <= mean * 1e-6,
                "step {step}, parameter {index}: {found}, not {mean}"
            );
        }
    });
    works::<M>(group);
}
