//! A random rank is killed at a random moment of a run: every other one names it, and what was measured is
//! kept.
//!
//! Three kills for each way of starting the ranks, or as many as `COLLECTIVES_TEST_KILLS` says;
//! `COLLECTIVES_TEST_SEED` repeats the choices of a run. With `--nocapture` each kill is a line, and a tally
//! follows.

#![allow(clippy::unwrap_used, clippy::panic, reason = "all of this is tests, though not marked as such")]

#[allow(dead_code, reason = "shared with the tests of the world, which use all of it")]
#[path = "../../tests/world/job.rs"]
mod job;

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use job::{Ended, Process, command, reserve_port, soon, start};
use record::files;
use record::{Run, RunOutcome};

const RANKS: usize = 4;
/// Message sizes, with numbers of operations for which a row takes a moment.
const SIZES: [(&str, u32); 3] = [("8", 5000), ("64K", 500), ("16M", 2)];
/// The first row comes within this time also where many others use the processors.
const FIRST_ROW: Duration = Duration::from_secs(300);
/// Maximum time of the kill after the first row.
const MOMENTS: Duration = Duration::from_millis(1500);

/// Method of starting the ranks.
#[derive(Clone, Copy, Debug)]
enum Start {
    /// By `mpirun`, as so many threads of each process.
    #[cfg(feature = "mpi")]
    Mpirun { world: &'static str, threads: usize },
    /// By a script that sets the variables of torchrun, as so many threads of each process.
    Torchrun { threads: usize },
}

impl Start {
    fn threads(self) -> usize {
        match self {
            #[cfg(feature = "mpi")]
            Self::Mpirun { threads, .. } => threads,
            Self::Torchrun { threads } => threads,
        }
    }

    fn processes(self) -> usize {
        RANKS / self.threads()
    }
}

/// Numbers that are random enough (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut number = self.0;
        number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (number ^ number >> 31) % end
    }
}

fn bench(start: Start, (size, operations): (&str, u32), folder: &Path) -> Vec<String> {
    let file = |name: &str| folder.join(name).display().to_string();
    let arguments =
        format!("allreduce --backend fabric -b {size} -e {size} -n {operations} -w 1 -c 0 -N 1000000");
    let mut all: Vec<String> = arguments.split(' ').map(str::to_owned).collect();
    all.extend(["--output".to_owned(), file("run.jsonl"), "--output".to_owned(), file("run.json")]);
    all.extend(["-J".to_owned(), file("tests.json"), "-t".to_owned(), start.threads().to_string()]);
    all
}

/// Starts a job: one process for each of the ranks', or that of `mpirun`.
fn launch(start_: Start, size: (&str, u32), folder: &Path) -> Vec<Process> {
    let program = env!("CARGO_BIN_EXE_nccl-bench");
    let arguments = bench(start_, size, folder);
    match start_ {
        #[cfg(feature = "mpi")]
        Start::Mpirun { world, .. } => {
            // Naming the sibling makes cargo build it; nccl-bench finds it beside itself.
            assert!(Path::new(env!("CARGO_BIN_EXE_nccl-bench-mpi")).exists());
            let mut command = command("mpirun");
            command.args(["--tag-output", "-np", &start_.processes().to_string(), program]).args(arguments);
            command
                .args(["--world", world])
                .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
                .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
                .env("OMPI_MCA_rmaps_base_oversubscribe", "1")
                // Launchers that start at the same time race for one folder in the usual place.
                .env("TMPDIR", folder);
            vec![start(command)]
        }
        Start::Torchrun { .. } => {
            let (port, processes) = (reserve_port().to_string(), start_.processes().to_string());
            let rank = |rank: usize| -> Command {
                let mut command = command(program);
                command.args(&arguments).env("RANK", rank.to_string()).env("WORLD_SIZE", &processes);
                command.env("LOCAL_RANK", rank.to_string()).env("LOCAL_WORLD_SIZE", &processes);
                command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", &port);
                command
            };
            (0..start_.processes()).map(|number| start(rank(number))).collect()
        }
    }
}

/// The ranks' processes, once there is a row.
fn processes_of(lines: &Path, job: &mut [Process]) -> Vec<u32> {
    let by = Instant::now() + FIRST_ROW;
    loop {
        let text = fs::read_to_string(lines).unwrap_or_default();
        // The header, the transport, and both placements.
        if text.lines().count() >= 4 {
            let header: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
            let ranks = header["ranks"].as_array().unwrap();
            return ranks.iter().map(|rank| rank["pid"].as_u64().unwrap() as u32).collect();
        }
        let all_run = job.iter_mut().all(Process::is_running);
        assert!(
            all_run && Instant::now() < by,
            "no rows: {:?}",
            job.iter_mut().map(|one| one.ended(soon())).collect::<Vec<_>>()
        );
        thread::sleep(Duration::from_millis(10));
    }
}

/// The output of each process, standard error or output.
fn texts(start: Start, ended: &[Ended], stream: &str) -> Vec<String> {
    let said = |ended: &Ended| if stream == "stderr" { ended.stderr.clone() } else { ended.stdout.clone() };
    match start {
        #[cfg(feature = "mpi")]
        Start::Mpirun { .. } => (0..start.processes())
            .map(|process| {
                let tag = format!(",{process}]<{stream}>:");
                let text = said(&ended[0]);
                let own = text.split_inclusive('\n').filter_map(|line| Some(line.split_once(&tag)?.1));
                own.collect()
            })
            .collect(),
        Start::Torchrun { .. } => ended.iter().map(said).collect(),
    }
}

/// The number in a text behind these words.
fn number_behind(text: &str, words: &str) -> Option<usize> {
    let behind = text.split_once(words)?.1;
    behind.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// Errors in the messages about a dead rank, which is the first of its process.
fn misnamed(start: Start, ended: &[Ended], victim: usize) -> Vec<String> {
    let mut wrong = Vec::new();
    for (process, text) in texts(start, ended, "stderr").iter().enumerate() {
        if process == victim / start.threads() {
            continue;
        }
        let named: Vec<usize> = text.lines().filter_map(|line| number_behind(line, "rank ")).collect();
        if named != [victim] {
            wrong.push(format!("process {process} names {named:?}"));
        }
    }
    #[cfg(feature = "mpi")]
    if let Start::Mpirun { .. } = start {
        let launcher = &ended[0].stderr;
        if let Some(aborted) = number_behind(launcher, "MPI_ABORT was invoked on rank ") {
            wrong.push(format!("rank {aborted} has called MPI_Abort"));
        }
        let noticed = number_behind(launcher, "mpirun noticed that process rank ");
        if noticed.is_some_and(|process| process != victim / start.threads()) {
            wrong.push(format!("mpirun names process {noticed:?}"));
        }
    }
    wrong
}

/// Number of measurements in a printed row: two, or the one that a run ended after.
fn measurements_of(row: &str) -> usize {
    let fields: Vec<&str> = row.split_whitespace().collect();
    let has_time = |column: &&usize| fields.get(**column).is_some_and(|time| time.parse::<f64>().is_ok());
    // The times out of place and in place.
    [5, 9].iter().filter(has_time).count()
}

/// Errors in the files of the run.
fn lost(folder: &Path, rank_0: &str, victim: usize) -> Vec<String> {
    let mut wrong = Vec::new();
    let complete = rank_0.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    let rows = complete.filter(|line| line.trim_start().starts_with(|c: char| c.is_ascii_digit()));
    let printed: usize = rows.map(measurements_of).sum();
    let mut check =
        |name: &str, outcome: &dyn Fn(&RunOutcome) -> bool| match files::read_run(&folder.join(name)) {
            Ok(Run { outcome: ended, measurements, .. }) => {
                if measurements.len() < printed || measurements.len() < 2 || !outcome(&ended) {
                    wrong.push(format!(
                        "{name}: {} measurements, {printed} printed, {ended:?}",
                        measurements.len()
                    ));
                }
            }
            Err(error) => wrong.push(format!("{name}: {error:#}")),
        };
    let named = format!("rank {victim} on host ");
    let failed =
        |end: &RunOutcome| matches!(end, RunOutcome::Failed { message } if message.starts_with(&named));
    if victim > 0 {
        check("run.jsonl", &failed);
        check("run.json", &failed);
    } else {
        // No process is left to complete the files. Those that are written row by row have all rows.
        check("run.jsonl", &|outcome| *outcome == RunOutcome::Running);
    }
    let compatible = fs::read_to_string(folder.join("tests.json")).unwrap_or_default();
    let parsed = serde_json::from_str::<serde_json::Value>(&compatible).is_ok();
    if !parsed || victim > 0 && !compatible.contains(&named) {
        wrong.push(format!("tests.json: {compatible}"));
    }
    wrong
}

/// One kill. Returns true when the victim was rank 0's process, and the errors in names and files.
fn kill(start: Start, size: (&str, u32), random: &mut Random) -> (bool, Vec<String>, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    let mut job = launch(start, size, folder.path());
    let ranks = processes_of(&folder.path().join("run.jsonl"), &mut job);
    assert_eq!(ranks.len(), RANKS);
    let moment = Duration::from_micros(random.below(MOMENTS.as_micros() as u64));
    let victim = random.below(RANKS as u64) as usize / start.threads() * start.threads();
    thread::sleep(moment);
    // SAFETY: `kill` touches no memory; the process runs until the job ends, which it does not by itself.
    assert_eq!(unsafe { libc::kill(ranks[victim] as libc::pid_t, libc::SIGKILL) }, 0);
    let ended: Vec<Ended> = job.iter_mut().map(|process| process.ended(soon())).collect();
    let mut misnamed = misnamed(start, &ended, victim);
    for (process, ended) in ended.iter().enumerate() {
        let killed = process == victim / start.threads();
        if matches!(start, Start::Torchrun { .. }) && ended.code != (!killed).then_some(1) {
            misnamed.push(format!("process {process} ended with {:?}", ended.code));
        }
    }
    let lost = lost(folder.path(), &texts(start, &ended, "stdout")[0], victim);
    println!(
        "{start:?}, {} bytes, rank {victim} after {} ms: {}",
        size.0,
        moment.as_millis(),
        if misnamed.is_empty() && lost.is_empty() { "right" } else { "WRONG" }
    );
    if !misnamed.is_empty() || !lost.is_empty() {
        println!("  {misnamed:?}\n  {lost:?}");
        ended.iter().for_each(|ended| println!("{}", ended.stderr));
    }
    (victim == 0, misnamed, lost)
}

/// Kills as many ranks as are asked for, of jobs started in these ways in turn.
fn kill_many(name: &str, starts: &[Start]) {
    let number = |variable| env::var(variable).ok().map(|value: String| value.parse::<u64>().unwrap());
    let now = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos() as u64;
    let seed = number("COLLECTIVES_TEST_SEED").unwrap_or_else(now);
    let kills = number("COLLECTIVES_TEST_KILLS").unwrap_or(3);
    println!("{name}: {kills} kills with COLLECTIVES_TEST_SEED={seed}");
    let mut random = Random(seed);
    let (mut named, mut kept, mut of_rank_0) = (0, 0, 0);
    for trial in 0..kills as usize {
        let size = SIZES[trial % SIZES.len()];
        let (rank_0, misnamed, lost) = kill(starts[trial / SIZES.len() % starts.len()], size, &mut random);
        named += u64::from(misnamed.is_empty());
        kept += u64::from(lost.is_empty());
        of_rank_0 += u64::from(rank_0);
    }
    println!(
        "{name}: named right {named} of {kills}; results kept {kept} of {kills}, in {of_rank_0} of which \
         rank 0's process was killed and what it had written is read up to its last row"
    );
    assert_eq!((named, kept), (kills, kills), "{name}, COLLECTIVES_TEST_SEED={seed}");
}

#[cfg(feature = "mpi")]
#[test]
fn a_rank_of_mpirun() {
    let start = |world| Start::Mpirun { world, threads: 1 };
    kill_many("mpirun", &[start("mpi"), start("tcp")]);
}

#[test]
fn a_rank_with_the_variables_of_torchrun() {
    kill_many("torchrun", &[Start::Torchrun { threads: 1 }]);
}

#[test]
fn a_process_of_several_ranks() {
    let starts = [
        Start::Torchrun { threads: 2 },
        #[cfg(feature = "mpi")]
        Start::Mpirun { world: "mpi", threads: 2 },
    ];
    kill_many("threads", &starts);
}
