//! The progress bar on a terminal: what is being measured, how far the run is, and how long it will still take.
//!
//! It is on standard error, and there only when that is a terminal: a pipe or a file never gets it.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::backend::Place;
use crate::sweep::{self, Plan};

/// What a measurement costs beside its bytes, in bytes: starting, waiting for the other ranks, verifying.
const FIXED_COST: u64 = 16 << 20;
const TEMPLATE: &str = "{bar:24} {percent:>3}% {elapsed} +{eta}  {msg}";

/// A bar, invisible where there is no terminal.
#[derive(Clone, Debug)]
pub struct Progress {
    bar: ProgressBar,
}

impl Default for Progress {
    /// Without a bar.
    fn default() -> Self {
        Self { bar: ProgressBar::hidden() }
    }
}

impl Progress {
    /// For all of a plan, over the rank's group.
    #[must_use]
    pub fn new(plan: &Plan, place: Place) -> Self {
        let bar = ProgressBar::with_draw_target(Some(total(plan, place)), ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
            bar.set_style(style);
        }
        Self { bar }
    }

    /// What is being measured.
    pub fn phase(&self, what: &str) {
        self.bar.set_message(what.to_owned());
    }

    /// A size has been measured in one placement.
    pub fn measured(&self, bytes: u64) {
        self.bar.inc(cost(bytes));
    }

    /// Prints something, above the bar.
    pub fn above<T>(&self, print: impl FnOnce() -> T) -> T {
        self.bar.suspend(print)
    }

    /// Removes the bar.
    pub fn end(&self) {
        self.bar.finish_and_clear();
    }
}

/// Time grows with the bytes, from a fixed amount on.
fn cost(bytes: u64) -> u64 {
    bytes.saturating_add(FIXED_COST)
}

/// All of a plan. Endless cycles count as one: nobody knows how many there will be.
fn total(plan: &Plan, place: Place) -> u64 {
    let sizes: u64 = plan.sweep.sizes().map(cost).fold(0, u64::saturating_add);
    let rows: usize = plan
        .collectives
        .iter()
        .filter(|collective| collective.runs_over(place.ranks))
        .map(|&collective| sweep::cases(plan, collective, place).len() * plan.placements(collective).len())
        .sum();
    sizes.saturating_mul(rows as u64).saturating_mul(plan.cycles.max(1) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{self, Command};
    use crate::sweep::Plan;

    #[test]
    fn all_sizes_of_all_cases_are_the_whole() {
        let line =
            "nccl-bench allreduce,hypercube,broadcast -b 1M -e 2M -o sum,max -d float,half -r all -N 3";
        let Command::Measure(settings) = cli::parse(line.split(' ')).unwrap() else {
            unreachable!("a measurement")
        };
        let mut plan = Plan::new(&settings, 2 << 20);
        // Two types: two operators, no hypercube over six ranks, six roots; two placements, three cycles.
        let place = Place { rank: 0, ranks: 6, color: 0 };
        let sizes = (1 << 20) + (2 << 20) + 2 * FIXED_COST;
        assert_eq!(total(&plan, place), sizes * (4 + 12) * 2 * 3);
        plan.out_of_place_only = vec![crate::collective::Collective::Broadcast];
        assert_eq!(total(&plan, place), sizes * (4 * 2 + 12) * 3);
    }
}
