//! Tables of communicators and ranks.

use super::progress::counts_text;
use super::words::RankNames;
use crate::examination::{Body, Section};
use crate::job::client::Tries;
use crate::job::status::{JobCommunicator, Rank, RankPlace, Status};
use crate::job::watch::Watch;

/// Largest number of printed rows of a table. The JSON has all.
const MOST_ROWS: usize = 64;

/// Returns the sections of the report.
pub(super) fn job_sections(watch: &Watch, rank_names: &RankNames<'_>) -> Vec<Section> {
    let first = watch.second.is_ok().then_some(&watch.first.status);
    let last = &watch.last_answer().status;
    let mut sections = vec![summarize_job(watch, last)];
    if !last.communicators.is_empty() {
        sections.push(communicator_table(first, last));
    }
    if let Some(largest) = rank_names.largest {
        sections.push(rank_table(first, largest));
    }
    sections
}

fn summarize_job(watch: &Watch, last: &Status) -> Section {
    let mut facts =
        vec![("address".to_owned(), watch.address.clone()), ("NCCL".to_owned(), last.nccl_version.clone())];
    let mut add = |name: &str, value: String| facts.push((name.to_owned(), value));
    if let Some(runtime) = last.cuda_runtime {
        add("CUDA runtime", format_cuda_version(runtime));
    }
    if let Some(driver) = last.cuda_driver {
        add("CUDA of the driver", format_cuda_version(driver));
    }
    add(
        "answer",
        if last.repaired {
            format!("{}, a missing comma added", last.format)
        } else {
            last.format.to_string()
        },
    );
    if watch.second.is_ok() {
        add("time between the answers", format!("{:.1} s", watch.interval().as_secs_f64()));
    }
    if let Some(seconds) = last.collection_s {
        add("collected in", format!("{seconds:.3} s"));
    }
    if last.timeouts > 0 {
        add("timeouts while collecting", last.timeouts.to_string());
    }
    let Tries { silent, others } = count_tries(watch);
    if silent > 0 {
        add("connections without an answer", silent.to_string());
    }
    if others > 0 {
        add("answers about other jobs", others.to_string());
    }
    add("communicators", last.communicator_count().to_string());
    Section { title: "RAS".to_owned(), body: Body::Facts(facts) }
}

/// Returns the connections without a useful answer, of both questions.
pub(super) fn count_tries(watch: &Watch) -> Tries {
    let second = match &watch.second {
        Ok(poll) => &poll.tries,
        Err(unanswered) => &unanswered.tries,
    };
    let first = &watch.first.tries;
    Tries { silent: first.silent + second.silent, others: first.others + second.others }
}

/// Formats a CUDA version: `12.9` for 12090.
fn format_cuda_version(version: i64) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

fn communicator_table(first: Option<&Status>, last: &Status) -> Section {
    let columns = ["communicator", "ranks", "without data", "state", "launched, least", "launched, most"];
    let mut sorted: Vec<&JobCommunicator> = last.communicators.iter().collect();
    sorted.sort_by_key(|each| std::cmp::Reverse(each.size));
    let rows = sorted.into_iter().take(MOST_ROWS).map(|communicator| {
        let mut states: Vec<String> =
            communicator.ranks.iter().filter_map(|rank| rank.state).map(|state| state.to_string()).collect();
        states.sort();
        states.dedup();
        let before = first.and_then(|first| first.find_communicator(&communicator.identity));
        let extreme = |pick: fn(&[u64]) -> Option<u64>| {
            let of = |communicator: &JobCommunicator| {
                pick(&communicator.ranks.iter().map(Rank::launched_operations).collect::<Vec<_>>())
            };
            arrow_text(before.and_then(of), of(communicator))
        };
        vec![
            communicator.identity.to_string(),
            communicator.size.to_string(),
            communicator.missing_count.to_string(),
            states.join(", "),
            extreme(|counts| counts.iter().min().copied()),
            extreme(|counts| counts.iter().max().copied()),
        ]
    });
    build_table("Communicators", &columns, rows.collect())
}

/// Returns `5 → 7`, or one number without a change.
fn arrow_text(before: Option<u64>, now: Option<u64>) -> String {
    match (before, now) {
        (Some(before), Some(now)) if before != now => format!("{before} → {now}"),
        (_, Some(now)) => now.to_string(),
        _ => String::new(),
    }
}

fn rank_table(first: Option<&Status>, largest: &JobCommunicator) -> Section {
    let columns = ["rank", "host", "process", "GPU", "state", "launched", "operations"];
    let before = first.and_then(|first| first.find_communicator(&largest.identity));
    let row = |rank: u32, place: Option<&RankPlace>, rest: [String; 3]| {
        let place = place.map_or_else(Default::default, |place| {
            [place.host.clone(), place.pid.to_string(), place.nvml_dev.to_string()]
        });
        (rank, [&[rank.to_string()][..], &place, &rest].concat())
    };
    let missing = largest.missing.iter().map(|rank| {
        row(rank.rank, rank.place.as_ref(), [rank.absence.to_string(), String::new(), String::new()])
    });
    let present = largest.ranks.iter().map(|rank| {
        let errors = rank.init_error.iter().chain(&rank.async_error).cloned();
        let state = rank.state.map(|state| state.to_string()).into_iter().chain(errors);
        let earlier = before.and_then(|before| before.rank(rank.rank)).map(Rank::launched_operations);
        let (state, launched) =
            (state.collect::<Vec<_>>().join(", "), arrow_text(earlier, Some(rank.launched_operations())));
        row(rank.rank, rank.place.as_ref(), [state, launched, counts_text(&rank.counts)])
    });
    // Absent ranks come first, to be in the table of a large job.
    let mut rows: Vec<(u32, Vec<String>)> = missing.chain(present).take(MOST_ROWS).collect();
    rows.sort_by_key(|(rank, _)| *rank);
    let title = format!("Ranks of communicator {}", largest.identity);
    build_table(&title, &columns, rows.into_iter().map(|(_, row)| row).collect())
}

fn build_table(title: &str, columns: &[&str], rows: Vec<Vec<String>>) -> Section {
    let columns = columns.iter().map(|column| (*column).to_owned()).collect();
    Section { title: title.to_owned(), body: Body::Table { columns, rows } }
}
