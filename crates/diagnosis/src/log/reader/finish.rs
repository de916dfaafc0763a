//! The end of the reading: the digest of all input.

use std::collections::BTreeMap;

use semver::Version;

use super::Reader;
use crate::log::blank;
use crate::log::digest::{Digest, Writer};

impl Reader<'_> {
    /// Returns the digest of all input.
    pub fn finish(mut self) -> Digest {
        for number in self.deferred.threads() {
            let only = self.writers.only_membership(number);
            if let Some(only) = only.filter(|only| self.communicators.is_without_start(*only)) {
                self.learn_deferred(number, only);
            }
        }
        let limits = self.describe_limits();
        let communicators = &self.communicators;
        let tasks = std::mem::take(&mut self.writers.tasks);
        let (mut writers, places) =
            self.writers.into_writers(|communicator| communicators.number_of_ranks(communicator));
        give_version(&mut writers, &self.versions);
        let tasks = tasks.compare_ranks(&writers, &places, self.messages.has_other_tasks);
        let mut digest = Digest {
            inputs: self.inputs,
            communicators: self.communicators.into_communicators(&places, &writers),
            writers,
            versions: self.versions.into_keys().collect(),
            paths: self.paths.into_paths(),
            repeated: self.repeated,
            limits,
            has_program_lines: self.has_program_lines,
            ..Digest::default()
        };
        self.messages.move_into_digest(&places, tasks, &mut digest);
        blank::remove_torn_communicators(&mut digest);
        self.output.move_into_digest(&mut digest);
        digest
    }

    /// Returns sentences about dropped facts.
    fn describe_limits(&self) -> Vec<String> {
        let members = &self.communicators.lost;
        let messages = &self.messages.lost;
        [
            (self.cut, "lines were longer than 16 KiB; their ends were not read"),
            (self.writers.lost, "lines are of processes and devices beyond the first 8192"),
            (
                self.writers.forgotten,
                "times the threads seen were forgotten, since there were more than 32768",
            ),
            (self.writers.lost_devices, "devices of networks were not listed"),
            (
                members.members,
                "lines are about communicators or ranks beyond the limit of 4096 communicators with 16384 \
                 ranks",
            ),
            (members.timings, "lines with timings were not kept: the limit is 4096 ranks"),
            (members.pairs, "channels were not kept: the limit is 24576 pairs of ranks"),
            (members.rings, "orders of rings were not kept"),
            (members.choices, "operations were not counted, since there are more than 16384 kinds"),
            (messages.hits, "messages are known to rules beyond the first 4096"),
            (
                messages.unknown,
                "warnings that no rule knows were not kept: the limit is 512 different warnings",
            ),
            (messages.variables, "lines with variables were not kept: the limit is 2048 different lines"),
            (messages.writers, "writers of messages were not listed"),
            (
                self.messages.watchdog.lost,
                "reports of PyTorch's watchdog were not kept: the limit is 16384 reports",
            ),
            (self.paths.lost, "paths between GPUs were not kept: the limit is 65536 paths"),
            (messages.diagnostics, "lines of NCCL's diagnostics were not kept: the limit is 4096 lines"),
        ]
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, text)| format!("{count} {text}"))
        .collect()
    }
}

/// Gives rank 0 the version of a line without writer: rank 0 writes this line to its standard output.
fn give_version(writers: &mut [Writer], versions: &BTreeMap<Version, String>) {
    let mut first = writers.iter_mut().filter(|writer| writer.rank == Some(0));
    if let (Some(writer), None) = (first.next(), first.next())
        && writer.nccl.is_none()
        && versions.len() == 1
        && let Some((version, build)) = versions.first_key_value()
    {
        writer.nccl = Some(version.clone());
        writer.nccl_build = (!build.is_empty()).then(|| build.clone());
    }
}
