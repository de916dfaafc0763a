//! Progress of a step: gradients that are ready, and the order in which buckets start.

use super::layout::Layout;

/// Progress of a step.
#[derive(Debug)]
pub(super) struct Schedule {
    /// By parameter.
    ready: Vec<bool>,
    /// Gradients that each bucket still lacks.
    lacking: Vec<usize>,
    /// The bucket that starts next.
    next: usize,
    /// Parameters in the order in which they became ready.
    order: Vec<u32>,
}

impl Schedule {
    pub(super) fn new(layout: &Layout) -> Self {
        let mut schedule = Self {
            ready: vec![false; layout.places.len()],
            lacking: Vec::with_capacity(layout.buckets.len()),
            next: 0,
            order: Vec::with_capacity(layout.places.len()),
        };
        schedule.begin_step(layout);
        schedule
    }

    /// Begins a step.
    pub(super) fn begin_step(&mut self, layout: &Layout) {
        self.ready.fill(false);
        self.lacking.clear();
        self.lacking.extend(layout.buckets.iter().map(|bucket| bucket.parameters));
        self.next = 0;
        self.order.clear();
    }

    /// True if no gradient of this step is ready yet.
    pub(super) fn is_new(&self) -> bool {
        self.order.is_empty()
    }

    pub(super) fn is_ready(&self, parameter: usize) -> bool {
        self.ready.get(parameter).copied().unwrap_or(false)
    }

    /// Notes that the gradient of a parameter is in its bucket, once in a step.
    pub(super) fn mark_ready(&mut self, parameter: usize, bucket: usize) {
        if let (Some(ready @ false), Some(lacking)) =
            (self.ready.get_mut(parameter), self.lacking.get_mut(bucket))
        {
            *ready = true;
            *lacking -= 1;
            // Numbers of parameters fit.
            self.order.push(parameter as u32);
        }
    }

    /// The next bucket to start, if it is full. Buckets start in their own order, which is the same on all
    /// ranks.
    pub(super) fn next_to_start(&mut self) -> Option<usize> {
        let bucket = self.next;
        let is_full = self.lacking.get(bucket).is_some_and(|&lacking| lacking == 0);
        is_full.then(|| {
            self.next += 1;
            bucket
        })
    }

    /// Parameters whose gradients are not ready.
    pub(super) fn missing_parameters(&self) -> impl Iterator<Item = usize> + '_ {
        self.ready.iter().enumerate().filter(|(_, ready)| !**ready).map(|(parameter, _)| parameter)
    }

    /// The order in which gradients became ready in this step.
    pub(super) fn ready_order(&self) -> &[u32] {
        &self.order
    }
}

/// The order in which gradients become ready.
pub(super) enum Order {
    /// The first step, which records it, is not complete.
    Unknown,
    /// Recorded; the second step arranges the buckets by it.
    Known(Vec<u32>),
    /// The buckets are arranged by it.
    Arranged,
}

#[cfg(test)]
mod tests {
    use super::super::layout::Limits;
    use super::*;

    /// Parameters 0 and 1 in bucket 1, 2 and 3 in bucket 0.
    fn layout() -> Layout {
        Layout::new(&[1, 1, 1, 1], (0..4).rev(), Limits { first: 2, others: 2 })
    }

    fn mark(schedule: &mut Schedule, parameter: usize) -> Vec<usize> {
        schedule.mark_ready(parameter, layout().places[parameter].bucket);
        std::iter::from_fn(|| schedule.next_to_start()).collect()
    }

    #[test]
    fn a_bucket_that_is_full_early_starts_after_those_before_it() {
        let mut schedule = Schedule::new(&layout());
        assert!(schedule.is_new());
        assert_eq!(mark(&mut schedule, 1), []);
        assert_eq!(mark(&mut schedule, 0), []);
        assert_eq!(mark(&mut schedule, 3), []);
        assert_eq!(schedule.missing_parameters().collect::<Vec<_>>(), [2]);
        assert_eq!(mark(&mut schedule, 2), [0, 1]);
        assert_eq!(schedule.missing_parameters().count(), 0);
        assert_eq!(schedule.ready_order(), [1, 0, 3, 2]);
    }

    #[test]
    fn a_second_mark_has_no_effect_and_the_next_step_begins_anew() {
        let mut schedule = Schedule::new(&layout());
        assert_eq!(mark(&mut schedule, 3), []);
        assert_eq!(mark(&mut schedule, 3), []);
        assert!(schedule.is_ready(3) && !schedule.is_ready(2));
        assert_eq!(mark(&mut schedule, 2), [0]);
        schedule.begin_step(&layout());
        assert!(schedule.is_new() && !schedule.is_ready(3));
        assert_eq!(mark(&mut schedule, 2), []);
        assert_eq!(mark(&mut schedule, 3), [0]);
    }
}
