//! The record of a run before anything is measured.

use collectives::world;
use record::{Provenance, Rank, Run, RunOutcome, SCHEMA_VERSION, Settings, provenance};

use super::links::read_links;
use crate::backend::Node;
use crate::groups::Groups;
use crate::nccl_choice;
use crate::request::{Request, Roots};

pub(super) fn start_of_record(
    request: &Request,
    node: &Node,
    world: String,
    ranks: Vec<Rank>,
    max_bytes: u64,
) -> Run {
    let settings = &request.settings;
    let mut notes = node.notes.clone();
    notes.extend(request.notes.iter().cloned());
    if let Some(fault) = request.fault {
        notes.push(format!(
            "Fault injection: element {} of rank {}'s result is damaged before each check",
            fault.index, fault.rank
        ));
    }
    if let Some(rounds) = settings.stream_checks {
        notes.push(format!(
            "Check on the stream: {rounds} rounds per size and placement without the host between, eager and \
             as a graph"
        ));
    }
    notes.extend(describe_groups(request, &node.groups));
    let links = (node.provenance.backend == "nccl").then(read_links);
    let provenance = Provenance { world, links, ..node.provenance.clone() };
    let settings = Settings {
        threads: node.threads,
        gpus: node.gpus,
        max_bytes: request.max_bytes.unwrap_or(max_bytes),
        rounds: settings.rounds.filter(|&rounds| rounds > 1 && settings.until_stable.is_none()),
        ..settings.clone()
    };
    describe_run(&request.program, &request.command, provenance, settings, ranks, notes)
}

/// The record of a run that starts now, without measurements. Adds the system and the environment of this
/// process to `provenance`.
pub(super) fn describe_run(
    program: &str,
    command: &[String],
    provenance: Provenance,
    settings: Settings,
    ranks: Vec<Rank>,
    notes: Vec<String>,
) -> Run {
    let mut environment = provenance::read_environment();
    let own = nccl_choice::own_variables();
    environment.retain(|name, _| !own.contains(&name.as_str()));
    Run {
        schema_version: SCHEMA_VERSION,
        program: program.to_owned(),
        command: command.to_owned(),
        started_at: provenance::now_utc(),
        ended_at: None,
        outcome: RunOutcome::Running,
        provenance: Provenance { system: provenance::describe_system(), environment, ..provenance },
        settings,
        ranks,
        start_phases: Vec::new(),
        measurements: Vec::new(),
        notes,
        left_out: None,
    }
}

/// Effects of a division into groups that the request does not show.
fn describe_groups(request: &Request, groups: &Groups) -> Vec<String> {
    let mut notes = Vec::new();
    if request.variables.split.is_some() && groups.group_count() == 1 {
        notes.push("NCCL_TESTS_SPLIT divides processes, and all processes are in one group".to_owned());
    }
    let has_root = request.collectives.iter().any(|collective| collective.has_root());
    if request.roots == Roots::All && has_root && groups.smallest_size() < groups.largest_size() {
        notes.push(format!(
            "{}: only roots 0 to {} exist in every group and are measured",
            request.names.with_value("roots", "all"),
            groups.smallest_size().saturating_sub(1)
        ));
    }
    notes
}

/// Launcher, number of processes, and their meeting: `Open MPI's mpirun, 16 processes, Open MPI 4.1.4`. Of a
/// single process only the meeting of its ranks, whose world is `world`.
pub(super) fn describe_processes(process: &dyn world::World, world: &dyn world::World) -> String {
    let meeting = world.describe();
    match process.size() {
        1 => meeting,
        processes => format!("{}, {processes} processes, {meeting}", world::Started::detect().launcher),
    }
}
