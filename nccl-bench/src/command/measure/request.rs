//! The conversion of the arguments of a measurement into a request.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use collectives::DataType;
use diagnosis::environment::{self, Reading};
use engine::collective::Collective;
use engine::data::Op;
use engine::data::traffic::Pattern;
use engine::request::{All, BackendChoice, FabricOptions, Request, Size, Variables, Versus};
use record::Blocking;

use super::arguments::{MeasureArguments, NAMES, NCCL_TESTS_BYTES};

/// The command line, and what the name in it means.
#[derive(Clone, Debug, Default)]
pub struct Invocation {
    /// True for a link with the name of a program of nccl-tests, which selects nccl-tests' defaults.
    pub as_nccl_tests: bool,
    /// The command line.
    pub command: Vec<String>,
}

/// Converts arguments and nccl-tests' variables into the request for `collectives`.
///
/// # Errors
/// A message with advice, for arguments that exclude each other.
pub fn build_request(
    arguments: &MeasureArguments,
    collectives: Vec<Collective>,
    invocation: &Invocation,
    variables: Variables,
) -> Result<Request, String> {
    let max_bytes = arguments.max_bytes.map(|size| size.0);
    let all = All {
        collectives: collectives.len() == Collective::ALL.len(),
        data_types: arguments.data_types.0.len() == DataType::ALL.len(),
        ops: arguments.ops.0.len() == Op::ALL.len(),
    };
    let mut request = Request {
        program: format!("nccl-bench {}", crate::build::VERSION),
        command: invocation.command.clone(),
        settings: arguments.to_settings(invocation.as_nccl_tests),
        max_bytes: max_bytes.or(invocation.as_nccl_tests.then_some(NCCL_TESTS_BYTES)),
        data_types: arguments.data_types.0.clone(),
        all,
        ops: arguments.ops.0.clone(),
        roots: arguments.roots,
        versus: arguments.versus,
        memory_report: arguments.memory_report,
        statistics: arguments.stats || !arguments.output.is_empty(),
        log_choices: arguments.log_choices,
        gpus: arguments.gpus.or(invocation.as_nccl_tests.then_some(1)),
        asks_for_gpus: asks_for_gpus(arguments, invocation),
        threads: arguments.threads,
        binding: arguments.binding,
        timeout: (arguments.timeout > 0).then(|| Duration::from_secs(arguments.timeout as u64)),
        provider: arguments.provider.clone(),
        tuning: fabric_options(arguments),
        world: arguments.world,
        fault: arguments.fault,
        variables,
        names: NAMES,
        also_equal: report_options(arguments),
        ..Request::new(collectives)
    };
    check_sizes(&request)?;
    check_verification(arguments)?;
    request.fabric_algorithms()?;
    request.backend = choose_backend(arguments)?;
    adjust_to_graph(arguments, &mut request)?;
    adjust_skip(&mut request);
    adjust_to_collectives(&mut request);
    request.notes.extend(note_unread_variables()?);
    Ok(request)
}

/// Variables without which a process of a job would be alone.
const JOINING: [&str; 3] = ["NCCL_BENCH_RANK", "NCCL_BENCH_SIZE", "NCCL_BENCH_ADDR"];

/// Notes about variables with a prefix of this program or of nccl-tests that nothing reads. Misspelt names of
/// [`JOINING`] are refused where the right one is not set.
fn note_unread_variables() -> Result<Vec<String>, String> {
    let note = |name: String| match environment::look_up_own_variable(&name) {
        Reading::Read => None,
        Reading::Unread(None) => Some(Ok(format!("{name} is set, and nothing reads it"))),
        Reading::Unread(Some(meant)) => {
            let note = format!("{name} is set, and nothing reads it: did you mean {meant}?");
            let is_missing = JOINING.contains(&meant) && std::env::var_os(meant).is_none();
            Some(if is_missing { Err(note) } else { Ok(note) })
        }
    };
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let own =
        names.filter(|name| ["NCCL_BENCH_", "NCCL_TESTS_"].iter().any(|prefix| name.starts_with(prefix)));
    let mut notes: Vec<String> = own.filter_map(note).collect::<Result<_, _>>()?;
    notes.sort_unstable();
    Ok(notes)
}

fn fabric_options(arguments: &MeasureArguments) -> FabricOptions {
    FabricOptions {
        algorithms: arguments.algorithms.clone(),
        between: arguments.between,
        segment: arguments.segment.map(|size| usize::try_from(size.0).unwrap_or(usize::MAX)),
        in_flight: arguments.in_flight,
    }
}

/// Options of the report that all processes must share, though rank 0 alone writes it.
fn report_options(arguments: &MeasureArguments) -> BTreeMap<&'static str, String> {
    BTreeMap::from([
        ("stats", arguments.stats.to_string()),
        ("nccl_tests_json", arguments.nccl_tests_json.is_some().to_string()),
        ("output", (!arguments.output.is_empty()).to_string()),
    ])
}

fn check_sizes(request: &Request) -> Result<(), String> {
    let (min_bytes, max_bytes) = (request.settings.min_bytes, request.max_bytes);
    if let Some(max) = max_bytes
        && max < min_bytes
    {
        return Err(format!(
            "the largest size (-e {}) is below the smallest (-b {})",
            Size(max),
            Size(min_bytes)
        ));
    }
    let largest = request.data_types.iter().map(|data_type| data_type.size()).max().unwrap_or(1);
    if max_bytes.is_some_and(|max| max < largest as u64) {
        return Err(format!("the largest size (-e) is below one element of {largest} bytes"));
    }
    if let Pattern::Matrix(_) = &request.variables.pattern
        && request.collectives.contains(&Collective::AllToAllV)
        && max_bytes != Some(min_bytes)
    {
        return Err(
            "a matrix (NCCL_TESTS_ALLTOALLV_MATRIX_FILE) defines how much each rank sends: give one size \
             with -b and -e, at least the amount that the busiest rank sends or receives"
                .to_owned(),
        );
    }
    Ok(())
}

/// Refuses options that exclude a graph (`-G`), and leaves out, with a note, those that a graph has no use
/// for.
fn adjust_to_graph(arguments: &MeasureArguments, request: &mut Request) -> Result<(), String> {
    if request.settings.graph_launches == 0 {
        return Ok(());
    }
    match request.settings.blocking {
        Blocking::No => {}
        Blocking::Outer => {
            request.notes.push("-z 3 is ignored: a graph (-G) has no iterations to wait for".to_owned());
            request.settings.blocking = Blocking::No;
        }
        Blocking::Wait | Blocking::WaitAndBarrier => {
            return Err("-z 1 and -z 2 wait inside the capture of -G: CUDA does not allow this".to_owned());
        }
    }
    if arguments.default_stream {
        return Err("-y: CUDA cannot capture the default stream into a graph (-G)".to_owned());
    }
    if request.settings.per_iteration {
        request.notes.push("-I is ignored: a graph (-G) is launched as a whole".to_owned());
        request.settings.per_iteration = false;
    }
    Ok(())
}

/// Leaves `-K` out, with a note, where it has no meaning.
fn adjust_skip(request: &mut Request) {
    let skip = request.settings.per_iteration_skip;
    if skip > 0 && (!request.settings.per_iteration || skip >= request.settings.iterations) {
        request.notes.push("-K is ignored: it needs -I, and fewer iterations to skip than -n".to_owned());
        request.settings.per_iteration_skip = 0;
    }
}

/// Leaves `-r` and `-o` out, with a note, where nothing that is measured has a root or reduces.
fn adjust_to_collectives(request: &mut Request) {
    let defaults = Request::new(Vec::new());
    if request.roots != defaults.roots && !request.collectives.iter().any(|each| each.has_root()) {
        request.notes.push("-r is ignored: no measured collective has a root".to_owned());
        request.roots = defaults.roots;
    }
    if request.ops != defaults.ops && !request.collectives.iter().any(|each| each.is_reduction()) {
        request.notes.push("-o is ignored: no measured collective reduces".to_owned());
        (request.ops, request.all.ops) = (defaults.ops, false);
    }
}

/// The backend, which depends on the baseline (`--vs`).
fn choose_backend(arguments: &MeasureArguments) -> Result<BackendChoice, String> {
    match (arguments.versus, arguments.backend) {
        (Some(Versus::Mpi), BackendChoice::Mpi) => {
            Err("--vs mpi would compare MPI with itself: remove --backend mpi".to_owned())
        }
        (Some(Versus::Fabric), BackendChoice::Fabric) => {
            Err("--vs fabric would compare libfabric with itself: remove --backend fabric".to_owned())
        }
        // Both in host memory, unless NCCL is named.
        (Some(Versus::Mpi), BackendChoice::Auto) => Ok(BackendChoice::Fabric),
        (Some(Versus::Fabric), BackendChoice::Auto) => Ok(BackendChoice::Nccl),
        (_, asked) => Ok(asked),
    }
}

/// Refuses options of verification that exclude each other.
fn check_verification(arguments: &MeasureArguments) -> Result<(), String> {
    if arguments.fault.is_some() && arguments.checks == 0 {
        return Err(
            "--inject-fault damages verified data, but -c 0 verifies nothing: remove one of them".to_owned()
        );
    }
    if arguments.stream_checks.is_none() {
        return Ok(());
    }
    if arguments.checks == 0 {
        return Err("--check-on-stream verifies, but -c 0 does not: remove one of them".to_owned());
    }
    if arguments.default_stream {
        return Err("-y: --check-on-stream captures the stream into a graph, and CUDA cannot capture the \
                    default stream"
            .to_owned());
    }
    if arguments.versus.is_some() {
        return Err("--check-on-stream needs NCCL alone: remove --vs".to_owned());
    }
    Ok(())
}

/// The argument, variable or program name that asks for GPUs.
fn asks_for_gpus(arguments: &MeasureArguments, invocation: &Invocation) -> Option<String> {
    match arguments.gpus {
        Some(gpus) => Some(format!("-g {gpus}")),
        None if invocation.as_nccl_tests => {
            let program =
                invocation.command.first().map(Path::new).and_then(Path::file_name).unwrap_or_default();
            Some(format!("the program's name, {},", program.to_string_lossy()))
        }
        None => gpu_variable(),
    }
}

/// The variable that chooses GPUs, or NCCL, for this process, with its value. `-1` and Slurm's `NoDevFiles`
/// choose none.
fn gpu_variable() -> Option<String> {
    let value = |name: &str| std::env::var(name).ok();
    let first = |value: &str| value.split(',').next().unwrap_or_default().trim().to_owned();
    let no_gpu = |value: &String| ["-1", "NoDevFiles"].contains(&first(value).as_str());
    if value("CUDA_VISIBLE_DEVICES").as_ref().is_some_and(no_gpu) {
        return None;
    }
    ["CUDA_VISIBLE_DEVICES", "NCCL_TESTS_DEVICE", "NCCL_LIBRARY"].into_iter().find_map(|name| {
        let value = value(name)?;
        (!first(&value).is_empty() && !no_gpu(&value)).then(|| format!("{name}={value}"))
    })
}
