//! The reports of the doctor: text, JSON, a page, JUnit.

mod html;
mod json;
mod junit;
pub(in crate::command) mod layout;
pub(in crate::command) mod matrix;
pub(in crate::command) mod text;

use std::io::{self, IsTerminal as _};
use std::path::PathBuf;

use anyhow::ensure;
use collectives::world::{Launcher, Started};
use diagnosis::examination::{Examination, Health};
use diagnosis::finding::{Action, Finding, Severity};
use diagnosis::words::{capitalize, ranges_text};
use engine::supervision::print_message;

use crate::command::output_file::Maker;
use crate::exit::{ExitError, print_text};

/// Mark near the start of each written file. A later run may replace a file with this mark.
const MARK: &str = "<!-- made by nccl-bench doctor -->\n";

/// Description of the doctor's files.
const MAKER: Maker =
    Maker { mark: MARK, product: "report", advice: "name another file", input: "is what is to be examined" };

/// Largest number of proofs in the verdict; the report has all of them.
const PROOFS: usize = 2;

/// The exit codes, for the help of each subcommand.
pub(super) const EXIT_CODES: &str = "\
Exit code:
  0  healthy, with proof
  1  degraded: it works, slower or less safely than it should
  2  broken; also wrong arguments, and files that cannot be read: then standard
     error has a line \"error: \", and standard output is empty
  3  cannot tell: neither health nor a fault is proven, or the report cannot be written
  4  a rank is missing, or did not take a step within -T: standard error says so
  128 + n  ended by signal n (Ctrl-C: 130)";

/// Options of the output.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Output {
    /// Show all findings, their evidence, and the facts: transports, ranks, variables, hosts
    #[arg(long, short, help_heading = "Reports")]
    pub verbose: bool,

    /// Print JSON instead of text
    #[arg(long, help_heading = "Reports")]
    pub json: bool,

    /// Also write a page, with pictures, that needs nothing else
    #[arg(long, value_name = "FILE", help_heading = "Reports")]
    pub html: Option<PathBuf>,

    /// Also write a JUnit file (XML) for pipelines
    #[arg(long, value_name = "FILE", help_heading = "Reports")]
    pub junit: Option<PathBuf>,

    /// Replace the files of --html and --junit, whatever they contain
    #[arg(long, help_heading = "Reports")]
    pub force: bool,
}

impl Output {
    /// Refuses files that must not be replaced. Call it before a long examination. `inputs` are the examined
    /// files.
    ///
    /// # Errors
    /// When a file must not be replaced.
    pub(super) fn check_outputs(&self, inputs: &[PathBuf]) -> Result<(), ExitError> {
        self.check_files(inputs).map_err(|error| ExitError::refused(format!("{error:#}")))
    }

    fn check_files(&self, inputs: &[PathBuf]) -> anyhow::Result<()> {
        if let (Some(html), Some(junit)) = (&self.html, &self.junit) {
            ensure!(html != junit, "--html and --junit name the same file; name another one for --junit");
        }
        for path in self.html.iter().chain(&self.junit) {
            MAKER.refuse_unrelated(path, self.force, inputs)?;
        }
        Ok(())
    }
}

/// Writes the reports, and returns the health as exit code; [`Health::CannotTell`] when a file or standard
/// output cannot be written.
///
/// # Errors
/// When a file must not be replaced, or nobody reads standard output.
pub(super) fn write_reports(output: &Output, examinations: &[Examination]) -> Result<u8, ExitError> {
    output.check_outputs(&[])?;
    let mut files = Vec::new();
    if let Some(path) = &output.html {
        files.push((path.clone(), html::render_page(examinations)));
    }
    if let Some(path) = &output.junit {
        files.push((path.clone(), junit::render_junit(examinations)));
    }
    if let Err(error) = MAKER.write_all(&files, output.force, &[]) {
        print_message(format_args!("error: {error:#}"));
        return Ok(Health::CannotTell.exit_code());
    }
    let text = if output.json {
        json::render_json(examinations)?
    } else {
        text::render_text(examinations, &text::Style { verbose: output.verbose, ..output_style() })
    };
    match print_text(&text) {
        Err(ExitError::Output(error)) if error.kind() != io::ErrorKind::BrokenPipe => {
            print_message(format_args!("error: writing to standard output: {error}"));
            // An unprinted report says nothing about the health.
            Ok(Health::CannotTell.exit_code())
        }
        printed => printed.map(|_| overall_health(examinations).exit_code()),
    }
}

/// Returns true on ranks other than 0 of a launcher. Used by commands with the same output on each rank.
///
/// A pod has the variables of its rank also for commands typed by a person, which have to print. A note gives
/// advice for the case that all ranks of a job run the command.
pub(in crate::command) fn is_left_to_rank_0() -> bool {
    let Started { launcher, rank, .. } = Started::detect();
    let Some(rank) = rank.filter(|&rank| rank > 0) else { return false };
    let is_left = match launcher {
        Launcher::Explicit | Launcher::OpenMpi | Launcher::Mpich | Launcher::Slurm => true,
        // An operator of Kubernetes sets RANK and WORLD_SIZE in pods, but only torchrun sets this one, in its
        // workers.
        Launcher::Torchrun => std::env::var_os("TORCHELASTIC_RUN_ID").is_some(),
        _ => false,
    };
    if !is_left && !io::stderr().is_terminal() {
        print_message(format_args!(
            "note: the variables of {launcher} make this process rank {rank}; each rank prints this report: \
             run it on rank 0 alone"
        ));
    }
    is_left
}

/// Returns the style of standard output: colours and width of a terminal. Neither in a pipe nor under a
/// launcher, because a launcher may give rank 0 a terminal and write the text from there to a file.
pub(in crate::command) fn output_style() -> text::Style {
    if Started::detect().launcher != Launcher::None {
        return text::Style::default();
    }
    let stdout = std::io::stdout();
    let colour = anstream::AutoStream::choice(&stdout) != anstream::ColorChoice::Never;
    let width = terminal_size::terminal_size_of(&stdout).map(|(width, _)| usize::from(width.0));
    text::Style { colour, width: width.filter(|_| stdout.is_terminal()), verbose: false }
}

/// Returns the signal that interrupted one of the examinations.
fn interrupting_signal(examinations: &[Examination]) -> Option<&str> {
    examinations.iter().find_map(|examination| examination.interrupted.as_deref())
}

/// Returns the health of all examinations: broken if one is, healthy only if all are. Cannot tell if a signal
/// has interrupted one, because failures in the logs can follow from the signal.
fn overall_health(examinations: &[Examination]) -> Health {
    if interrupting_signal(examinations).is_some() {
        return Health::CannotTell;
    }
    let order = [Health::Broken, Health::Degraded, Health::CannotTell, Health::Healthy];
    let found: Vec<Health> = examinations.iter().map(Examination::health).collect();
    order.into_iter().find(|health| found.contains(health)).unwrap_or(Health::CannotTell)
}

/// Returns the verdict in one line.
fn verdict_line(examinations: &[Examination]) -> String {
    format!("{}: {}", overall_health(examinations).to_string().to_uppercase(), verdict_reason(examinations))
}

/// Returns the reason of the verdict.
fn verdict_reason(examinations: &[Examination]) -> String {
    let reason = match overall_health(examinations) {
        Health::Broken => first_diagnosis(examinations, Severity::Broken),
        Health::Degraded => first_diagnosis(examinations, Severity::Degraded),
        Health::CannotTell if interrupting_signal(examinations).is_some() => {
            let found = first_diagnosis(examinations, Severity::Broken)
                .or_else(|| first_diagnosis(examinations, Severity::Degraded));
            let doubt = find_doubt(examinations).unwrap_or_default();
            Some(
                found.map_or_else(|| doubt.to_owned(), |found| format!("{doubt}; found until then: {found}")),
            )
        }
        Health::CannotTell => {
            let doubt = find_doubt(examinations).unwrap_or("nothing is proven");
            Some(match measurement_proof(examinations) {
                Some(proof) => format!("{proof}; not seen: {doubt}"),
                None => doubt.to_owned(),
            })
        }
        Health::Healthy => {
            let of_each = if examinations.len() == 1 { PROOFS } else { 1 };
            let proofs = examinations.iter().flat_map(|examination| examination.proof.iter().take(of_each));
            Some(proofs.take(PROOFS).cloned().collect::<Vec<_>>().join("; "))
        }
    };
    reason.unwrap_or_default()
}

/// Returns the diagnosis of the first finding of this severity.
fn first_diagnosis(examinations: &[Examination], severity: Severity) -> Option<String> {
    let mut found = examinations.iter().flat_map(|examination| &examination.findings);
    found
        .find(|finding| finding.severity == severity)
        .map(|finding| finding.diagnosis.trim_end_matches('.').to_owned())
}

/// Returns the proof of a successful measurement. It was requested, so it comes before unseen facts.
fn measurement_proof(examinations: &[Examination]) -> Option<&str> {
    let measurement = examinations.iter().find(|examination| examination.subject == "measurement")?;
    (measurement.health() == Health::Healthy).then(|| measurement.proof.first().map(String::as_str))?
}

/// Returns the reason of [`Health::CannotTell`].
fn find_doubt(examinations: &[Examination]) -> Option<&str> {
    let interrupted = examinations.iter().find(|examination| examination.interrupted.is_some());
    interrupted.and_then(doubt_of).or_else(|| examinations.iter().find_map(doubt_of))
}

fn doubt_of(examination: &Examination) -> Option<&str> {
    if examination.health() != Health::CannotTell {
        return None;
    }
    let unknown = examination.findings.iter().find(|finding| finding.severity == Severity::Unknown);
    let unknown = unknown.map(|finding| finding.diagnosis.as_str());
    unknown.or_else(|| examination.unseen.first().map(String::as_str)).map(|text| text.trim_end_matches('.'))
}

/// Returns the findings of all examinations, worst first.
fn sort_findings(examinations: &[Examination]) -> Vec<&Finding> {
    let mut findings: Vec<&Finding> =
        examinations.iter().flat_map(|examination| &examination.findings).collect();
    findings.sort_by_key(|finding| finding.severity);
    findings
}

/// Returns the heading of an examination.
fn examination_title(examination: &Examination) -> String {
    capitalize(examination.subject)
}

/// Returns the place, line, rank and host of a piece of evidence: `job.log:24, rank 0, host a`.
fn evidence_place(evidence: &diagnosis::finding::Evidence) -> String {
    let line = evidence.line.map(|line| format!(":{line}")).unwrap_or_default();
    let rank = evidence.rank.map(|rank| format!(", rank {rank}")).unwrap_or_default();
    let host = evidence.host.as_ref().map(|host| format!(", host {host}")).unwrap_or_default();
    format!("{}{line}{rank}{host}", evidence.place)
}

/// Returns the labelled texts of a finding, without missing ones.
fn finding_details(finding: &Finding) -> impl Iterator<Item = (&'static str, String)> {
    let details = [
        ("Concerns", ranks_and_hosts(finding)),
        ("Cause", finding.cause.clone()),
        ("Remedy", finding.remedy.clone()),
        ("Node", node_advice(finding.action).map(str::to_owned)),
        ("Source", finding.source.clone()),
    ];
    details.into_iter().filter_map(|(name, text)| Some((name, text?)))
}

/// Returns the recommended action for a node.
fn node_advice(action: Action) -> Option<&'static str> {
    match action {
        Action::None => None,
        Action::Watch => Some("watch whether it happens again"),
        Action::Reset => Some("reset the GPU"),
        Action::Reboot => Some("reboot the node"),
        Action::Isolate => Some("take the node out of service"),
    }
}

/// Returns the ranks and hosts of a finding: `ranks 0-3, 7; hosts a, b`.
fn ranks_and_hosts(finding: &Finding) -> Option<String> {
    /// Maximum number of named hosts.
    const HOSTS: usize = 8;
    let ranks = match &finding.ranks[..] {
        [] => None,
        [rank] => Some(format!("rank {rank}")),
        several => Some(format!("ranks {}", ranges_text(several))),
    };
    let hosts = match &finding.hosts[..] {
        [] => None,
        [host] => Some(format!("host {host}")),
        several if several.len() <= HOSTS => Some(format!("hosts {}", several.join(", "))),
        several => Some(format!("{} hosts: {}, ...", several.len(), several[..HOSTS].join(", "))),
    };
    let parts: Vec<String> = ranks.into_iter().chain(hosts).collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

#[cfg(test)]
mod tests;
