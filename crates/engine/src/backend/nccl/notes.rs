//! Notes for the reader of a run over NCCL.

use collectives::nccl::Version;
use diagnosis::environment::parse_version;
use diagnosis::knowledge::faults::{Component, Faults};
use record::Registration;

use super::assignment::MULTI_RANK;
use super::is_fp8;
use crate::collective::Collective;
use crate::data::{EARLY_CAPABILITY, Op};
use crate::request::Request;

/// The fault that the library's order between kernels prevents.
const SYMMETRIC_FAULT: &str = "symmetric-without-grid-sync";

/// Notes on the request. `capability` is the least of all GPUs, `ranks` their number in the
/// communicator, and `ranks_on_gpu` the most on one GPU.
pub(super) fn list_request_notes(
    request: &Request,
    loaded: Version,
    capability: (u32, u32),
    ranks: usize,
    ranks_on_gpu: usize,
) -> Vec<String> {
    let is_set = |name: &str| std::env::var_os(name).is_some();
    let mut notes = known_faults(request, loaded, ranks, &is_set);
    if request.settings.stream_checks.is_some() && capability < EARLY_CAPABILITY {
        let (option, (major, minor)) = (request.names.field_name("stream_checks"), capability);
        notes.push(format!(
            "{option}: an early trigger of programmatic launch needs compute capability {}.{}, but the GPU \
             has {major}.{minor}. So a plain kernel writes the inputs, and an operation that starts too \
             early is not detected",
            EARLY_CAPABILITY.0, EARLY_CAPABILITY.1,
        ));
    }
    if ranks_on_gpu > 1 {
        notes.push(format!(
            "up to {ranks_on_gpu} ranks share a GPU ({MULTI_RANK}): times and bandwidths are of one GPU \
             with itself, not of NVLink or a network"
        ));
    }
    notes
}

/// A note for each known fault of the loaded version that touches an operation or option of the request.
/// Faults that depend on the machine alone are for `nccl-bench doctor`.
fn known_faults(
    request: &Request,
    loaded: Version,
    ranks: usize,
    is_set: &dyn Fn(&str) -> bool,
) -> Vec<String> {
    let Ok(version) = parse_version(&loaded.to_string()) else { return Vec::new() };
    let touched = touched_names(request, ranks);
    Faults::built_in()
        .of_component(Component::Nccl, &version)
        .into_iter()
        .filter(|fault| fault.touches.iter().any(|name| touched.contains(&name.as_str())))
        .filter(|fault| fault.conditions.iter().all(|condition| variables_are_set(condition, is_set)))
        .map(|fault| {
            let condition = match fault.conditions.join("; ") {
                none if none.is_empty() => String::new(),
                conditions => format!(", with {conditions}"),
            };
            let prevented = if fault.id == SYMMETRIC_FAULT { describe_fence(request) } else { "" };
            format!(
                "Known fault of NCCL {loaded} [{}]{condition}: {} {}{prevented}",
                fault.id, fault.effect, fault.remedy
            )
        })
        .collect()
}

/// The library's protection against [`SYMMETRIC_FAULT`].
fn describe_fence(request: &Request) -> &'static str {
    if request.variables.without_symmetric_fence {
        " The library does not order the kernels (NCCL_BENCH_SYMMETRIC_FENCE=0), so results can be wrong"
    } else {
        " The library orders the kernels, at a cost of about 1 us per operation"
    }
}

/// The names in [`diagnosis::knowledge::faults::TOUCHES`] that a request touches.
fn touched_names(request: &Request, ranks: usize) -> Vec<&'static str> {
    let has = |wanted: &[Collective]| request.collectives.iter().any(|each| wanted.contains(each));
    let averages =
        request.ops.contains(&Op::Avg) && request.collectives.iter().any(|each| each.is_reduction());
    let with_fp8 = request.data_types.iter().any(is_fp8) && has(&[Collective::AllReduce]);
    let all = [
        ("symmetric", request.settings.registration == Registration::Symmetric),
        ("registered", request.settings.registration != Registration::None),
        ("graph", request.settings.graph_launches > 0 || request.settings.stream_checks.is_some()),
        ("avg-one-rank", ranks == 1 && averages),
        ("all-reduce", has(&[Collective::AllReduce])),
        ("alltoall", has(&[Collective::AllToAll, Collective::AllToAllV])),
        ("sendrecv", has(&[Collective::SendRecv])),
        ("fp8", with_fp8),
        ("split", request.variables.split.is_some()),
    ];
    all.into_iter().filter(|(_, is_touched)| *is_touched).map(|(name, _)| name).collect()
}

/// Returns true when the variables of NCCL that a condition names are set. Other conditions cannot be
/// checked.
fn variables_are_set(condition: &str, is_set: &dyn Fn(&str) -> bool) -> bool {
    condition
        .split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_')
        .filter(|word| word.starts_with("NCCL_"))
        .all(is_set)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::Collective;
    use record::Settings;

    fn request() -> Request {
        Request::new(vec![Collective::AllReduce])
    }

    fn with(settings: Settings) -> Request {
        Request { settings, ..request() }
    }

    fn faults(request: &Request, version: Version, ranks: usize, set: &[&str]) -> Vec<String> {
        known_faults(request, version, ranks, &|name| set.contains(&name))
            .iter()
            .map(|note| note.split(['[', ']']).nth(1).unwrap().to_owned())
            .collect()
    }

    #[test]
    fn gpus_of_several_ranks_are_noted() {
        let note = &list_request_notes(&request(), Version::new(2, 28, 9), (9, 0), 4, 2)[0];
        assert!(note.starts_with("up to 2 ranks share a GPU (NCCL_MULTI_RANK_GPU_ENABLE)"), "{note}");
    }

    #[test]
    fn a_known_fault_is_noted_with_the_option_that_it_touches() {
        let plain = request();
        let symmetric =
            with(Settings { registration: Registration::Symmetric, ..Settings::of_collectives() });
        for (version, racing) in [
            (Version::new(2, 28, 2), false),
            (Version::new(2, 28, 3), true),
            (Version::new(2, 28, 9), true),
            (Version::new(2, 29, 0), true),
            (Version::new(2, 30, 6), true),
            (Version::new(2, 30, 7), false),
        ] {
            let is_noted = |request| faults(request, version, 8, &[]).iter().any(|id| id == SYMMETRIC_FAULT);
            assert_eq!((is_noted(&symmetric), is_noted(&plain)), (racing, false), "{version}");
        }
        let averages = Request { ops: vec![Op::Avg], ..request() };
        let version = Version::new(2, 28, 9);
        assert_eq!(faults(&averages, version, 1, &[]), ["average-of-one-rank"]);
        assert_eq!(faults(&averages, version, 2, &[]), [""; 0]);
        let broadcast = Request { ops: vec![Op::Avg], ..Request::new(vec![Collective::Broadcast]) };
        assert_eq!(faults(&broadcast, version, 1, &[]), [""; 0]);
    }

    #[test]
    fn a_fault_of_a_variable_is_noted_only_where_it_is_set() {
        let request = Request::new(vec![Collective::AllToAll]);
        let version = Version::new(2, 30, 7);
        assert_eq!(faults(&request, version, 8, &[]), [""; 0]);
        assert_eq!(faults(&request, version, 8, &["NCCL_CHUNK_SIZE"]), ["chunk-size-overrun"]);
    }

    #[test]
    fn the_note_of_symmetric_windows_tells_the_protection() {
        let mut request =
            with(Settings { registration: Registration::Symmetric, ..Settings::of_collectives() });
        for (off, words) in [(false, "The library orders"), (true, "(NCCL_BENCH_SYMMETRIC_FENCE=0)")] {
            request.variables.without_symmetric_fence = off;
            let found = known_faults(&request, Version::new(2, 28, 9), 8, &|_| false);
            assert!(found.iter().any(|note| note.contains(words) && !note.contains('\n')), "{found:?}");
        }
    }

    #[test]
    fn a_check_on_the_stream_that_cannot_trigger_early_says_so() {
        let version = Version::new(2, 27, 0);
        let checked = with(Settings { stream_checks: Some(200), ..Settings::of_collectives() });
        assert_eq!(list_request_notes(&checked, version, (9, 0), 2, 1), [""; 0]);
        assert_eq!(list_request_notes(&checked, version, (10, 0), 2, 1), [""; 0]);
        let found = list_request_notes(&checked, version, (8, 9), 2, 1);
        assert!(found.len() == 1 && found[0].contains("the GPU has 8.9"), "{found:?}");
        assert_eq!(list_request_notes(&request(), version, (8, 9), 2, 1), [""; 0]);
    }
}
