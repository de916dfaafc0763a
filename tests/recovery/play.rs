//! A job in which some ranks die, stop, leave or come late: their fates.

use crate::job::{Ended, Process, command, reserve_port, soon, start};
use std::env;
use std::fs;

pub(crate) struct Play {
    pub(crate) processes: Vec<Process>,
    folder: tempfile::TempDir,
    job: String,
}

impl Play {
    /// Starts a job in which the ranks have these fates, and `left` are left at the end. In the values of
    /// variables, `{rank}` is the number of a process.
    pub(crate) fn start(
        processes: usize,
        carrier: &str,
        fates: &str,
        left: usize,
        more: &[(&str, &str)],
    ) -> Self {
        let (port, folder) = (reserve_port(), tempfile::tempdir().unwrap());
        let processes = (0..processes)
            .map(|rank| {
                let mut command = command(env::current_exe().unwrap().to_str().unwrap());
                command
                    .env("RECOVERY_FATES", fates)
                    .env("RECOVERY_CARRIER", carrier)
                    .env("RECOVERY_LEFT", left.to_string())
                    .env("RECOVERY_FOLDER", folder.path())
                    .env("NCCL_BENCH_RANK", rank.to_string())
                    .env("NCCL_BENCH_SIZE", processes.to_string())
                    .env("NCCL_BENCH_ADDR", format!("127.0.0.1:{port}"))
                    .env("NCCL_BENCH_TIMEOUT", "30")
                    .envs(
                        more.iter().map(|(name, value)| (name, value.replace("{rank}", &rank.to_string()))),
                    );
                start(command)
            })
            .collect();
        Self { processes, folder, job: format!("{fates} over {carrier}") }
    }

    /// Waits until the ranks that are left have made all steps.
    pub(crate) fn wait_until_gone_on(&self) {
        let by = soon();
        while !self.folder.path().join("gone-on").exists() {
            assert!(std::time::Instant::now() < by, "{}: the ranks that are left have not gone on", self.job);
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    /// Lets processes go on that wait for `flag`.
    pub(crate) fn tell(&self, flag: &str) {
        fs::write(self.folder.path().join(flag), "").unwrap();
    }

    pub(crate) fn ended_well(&mut self, process: usize) {
        let ended = self.ended(process);
        assert_eq!(ended.code, Some(0), "{}: {ended:?}", self.job);
    }

    pub(crate) fn assert_left_out(&mut self, process: usize) {
        let ended = self.ended(process);
        assert_eq!(ended.code, Some(3), "{}: {ended:?}", self.job);
        assert!(ended.stderr.contains("continue without it"), "{}: {ended:?}", self.job);
    }

    pub(crate) fn ended(&mut self, process: usize) -> Ended {
        self.processes[process].ended(soon())
    }

    /// Waits for the ends of all processes. Panics unless those in `going_on` have gone on together, as the
    /// ranks of these bits.
    pub(crate) fn assert_goes_on(&mut self, going_on: &[usize], bits: u64) -> Vec<Ended> {
        let ended: Vec<Ended> = (0..self.processes.len()).map(|process| self.ended(process)).collect();
        for (rank, &process) in going_on.iter().enumerate() {
            let ended = &ended[process];
            assert_eq!(ended.code, Some(0), "{}: {ended:?}", self.job);
            let last = ended.stdout.lines().rfind(|line| line.starts_with("result ")).unwrap_or_default();
            let expected = format!("result {bits:b} of {} as {rank} ", going_on.len());
            assert!(last.starts_with(&expected), "{}: not `{expected}`: {ended:?}", self.job);
        }
        ended
    }
}

/// Nanoseconds at the end of the last line of an output that begins with `what`.
pub(crate) fn time_of(ended: &Ended, what: &str) -> u128 {
    let line = ended.stdout.lines().rfind(|line| line.starts_with(what)).unwrap();
    line.rsplit(' ').next().unwrap().parse().unwrap()
}
