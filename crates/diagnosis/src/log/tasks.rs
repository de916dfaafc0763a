//! Tasks of a launcher: their number is a rank only if each has one process with this rank.

use foldhash::HashMap;

use super::digest::{Example, Writer};
use super::label;

/// Largest number of tasks and of their writers.
const TASKS: usize = 65_536;

/// The tasks in the labels of NCCL's lines.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    processes: HashMap<u32, usize>,
    by_writer: HashMap<usize, u32>,
    /// True if a task has several processes, or a writer several tasks.
    is_shared: bool,
    /// True for labels such as `[3] `. Other programs write such words with other meanings.
    has_bare: bool,
}

/// The labels that have ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RankTasks {
    are_ranks: bool,
    has_bare: bool,
}

impl Tasks {
    /// Notes the label in front of the first line of a thread.
    pub(super) fn note_label(&mut self, before: &[u8], writer: usize, process: usize) {
        let Some(task) = label::parse_task(before).filter(|_| self.by_writer.len() < TASKS) else { return };
        self.is_shared |= *self.processes.entry(task.number).or_insert(process) != process;
        self.is_shared |= *self.by_writer.entry(writer).or_insert(task.number) != task.number;
        self.has_bare |= task.is_bare;
    }

    /// Compares the tasks with the ranks of the writers. `places` has the final index of each writer.
    pub(super) fn compare_ranks(self, writers: &[Writer], places: &[usize], is_other: bool) -> RankTasks {
        let is_wrong = |(&writer, &task): (&usize, &u32)| {
            let rank = places.get(writer).and_then(|&place| writers.get(place)?.rank);
            rank.is_some_and(|rank| rank != task)
        };
        let are_ranks = !is_other && !self.is_shared && !self.by_writer.iter().any(is_wrong);
        RankTasks { are_ranks, has_bare: self.has_bare }
    }
}

impl RankTasks {
    /// Removes the number of a task from a message unless it is a rank.
    pub(super) fn check_example(self, example: &mut Example) {
        let is_bare = example.is_bare_task && !self.has_bare;
        if example.is_task && (!self.are_ranks || is_bare) {
            example.rank = None;
        }
    }
}
