//! Notes for the reader of a run over NCCL.

use collectives::nccl::{SYMMETRIC_RACE, Version};

use super::assignment::MULTI_RANK;
use crate::data::EARLY_CAPABILITY;
use crate::request::{Request, SYMMETRIC_FENCE};
use record::Registration;

/// Notes on the requested settings. `capability` is the least of all GPUs, `ranks_on_gpu` the most.
pub(super) fn notes(
    settings: &Request,
    loaded: Version,
    capability: (u32, u32),
    ranks_on_gpu: usize,
) -> Vec<String> {
    let mut notes = Vec::new();
    if settings.registration == Registration::Symmetric && SYMMETRIC_RACE.contains(&loaded) {
        let protection = if settings.variables.without_symmetric_fence {
            format!("The library does not order them ({SYMMETRIC_FENCE}=0), so that results can be wrong")
        } else {
            "The library orders them, which costs about 1 us per operation".to_owned()
        };
        notes.push(format!(
            "-R 2: symmetric windows of NCCL {} to {} ({loaded} is loaded) race with a kernel before the collective that \
             triggers programmatic launch early. {protection}",
            SYMMETRIC_RACE.start(),
            SYMMETRIC_RACE.end(),
        ));
    }
    if settings.stream_checks.is_some() && capability < EARLY_CAPABILITY {
        notes.push(format!(
            "--check-on-stream: a GPU of compute capability {}.{} cannot trigger programmatic launch early, which needs \
             {}.{}: its inputs are written by a plain kernel, so that an operation which starts too early is not found",
            capability.0, capability.1, EARLY_CAPABILITY.0, EARLY_CAPABILITY.1,
        ));
    }
    if ranks_on_gpu > 1 {
        notes.push(format!(
            "up to {ranks_on_gpu} ranks share a GPU ({MULTI_RANK}): times and bandwidths are those of one GPU with \
             itself, and say nothing of NVLink or a network"
        ));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::Collective;

    fn request() -> Request {
        Request::new(vec![Collective::AllReduce])
    }

    fn registered(registration: Registration, loaded: Version) -> Vec<String> {
        notes(&Request { registration, ..request() }, loaded, (9, 0), 1)
    }

    #[test]
    fn gpus_of_several_ranks_are_noted() {
        let note = &notes(&request(), Version::new(2, 28, 9), (9, 0), 2)[0];
        assert!(note.starts_with("up to 2 ranks share a GPU (NCCL_MULTI_RANK_GPU_ENABLE)"), "{note}");
    }

    #[test]
    fn windows_without_protection_are_noted() {
        let mut settings = Request { registration: Registration::Symmetric, ..request() };
        for (off, words) in [(false, "The library orders them"), (true, "(NCCL_BENCH_SYMMETRIC_FENCE=0)")] {
            settings.variables.without_symmetric_fence = off;
            let found = notes(&settings, Version::new(2, 28, 9), (9, 0), 1);
            assert!(found.len() == 1 && found[0].contains(words), "{found:?}");
            assert_eq!(notes(&settings, Version::new(2, 30, 7), (9, 0), 1), [""; 0]);
        }
    }

    #[test]
    fn symmetric_windows_are_noted_on_the_versions_that_race() {
        for (version, racing) in [
            (Version::new(2, 28, 2), false),
            (Version::new(2, 28, 3), true),
            (Version::new(2, 28, 9), true),
            (Version::new(2, 29, 0), true),
            (Version::new(2, 30, 6), true),
            (Version::new(2, 30, 7), false),
        ] {
            let found = registered(Registration::Symmetric, version);
            assert_eq!(found.len(), usize::from(racing), "{version}: {found:?}");
            assert!(found.iter().all(|note| note.contains("NCCL 2.28.3 to 2.30.6")), "{found:?}");
        }
        assert_eq!(registered(Registration::Local, Version::new(2, 28, 9)), [""; 0]);
    }

    #[test]
    fn a_check_on_the_stream_that_cannot_trigger_early_says_so() {
        let version = Version::new(2, 27, 0);
        let checked = Request { stream_checks: Some(200), ..request() };
        assert_eq!(notes(&checked, version, (9, 0), 1), [""; 0]);
        assert_eq!(notes(&checked, version, (10, 0), 1), [""; 0]);
        let found = notes(&checked, version, (8, 9), 1);
        assert!(found.len() == 1 && found[0].contains("capability 8.9"), "{found:?}");
        assert_eq!(notes(&request(), version, (8, 9), 1), [""; 0]);
    }
}
