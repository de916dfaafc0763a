//! The two backends of a run with `--vs`, each as a run of its own.

use crate::run::{Measurement, Provenance, Run};

/// Selection of the backends of a run with `--vs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum SelectedSide {
    /// The measured backend (--backend)
    Own,
    /// The backend that was measured in turn with it (--vs)
    Other,
    /// Each as a run of its own
    Both,
}

impl SelectedSide {
    /// Returns the selected runs, each with the name of its backend, or `None` when the run has only one.
    /// Empty when the run lacks the selected one.
    pub fn select_runs(self, run: Run) -> Vec<(Option<String>, Run)> {
        let other = baseline_run(&run);
        match (self, other) {
            (Self::Own, _) | (Self::Both, None) => vec![(None, run)],
            (Self::Other, None) => Vec::new(),
            (Self::Other, Some(other)) => vec![with_backend_name(other)],
            (Self::Both, Some(other)) => {
                vec![with_backend_name(without_baseline(run)), with_backend_name(other)]
            }
        }
    }
}

fn with_backend_name(run: Run) -> (Option<String>, Run) {
    (Some(run.provenance.backend.clone()), run)
}

/// Returns the run without the baseline.
fn without_baseline(run: Run) -> Run {
    Run {
        provenance: Provenance { versus: None, ..run.provenance },
        measurements: run.measurements.into_iter().map(|each| Measurement { versus: None, ..each }).collect(),
        ..run
    }
}

/// Returns the provenance of the baseline; `None` for a run without one.
pub(crate) fn other_provenance(own: &Provenance) -> Option<Provenance> {
    let library = own.versus.clone()?;
    Some(Provenance {
        backend: library.backend,
        library_version: library.library_version,
        library_path: library.library_path,
        versus: None,
        transport: None,
        ..own.clone()
    })
}

/// Returns the baseline as a run, if it was measured. It lacks all values that only the measured backend has.
fn baseline_run(run: &Run) -> Option<Run> {
    let provenance = other_provenance(&run.provenance)?;
    let measurement = |own: &Measurement| {
        let versus = own.versus.clone()?;
        Some(Measurement {
            time_us: versus.time_us,
            cpu_time_us: None,
            algbw_gbps: versus.algbw_gbps,
            busbw_gbps: versus.busbw_gbps,
            wrong: versus.wrong,
            rounds_us: versus.rounds_us,
            versus: None,
            statistics: None,
            per_iteration: None,
            per_rank: Vec::new(),
            algorithm: None,
            mismatches: versus.mismatches,
            ..own.clone()
        })
    };
    let measurements: Vec<Measurement> = run.measurements.iter().filter_map(measurement).collect();
    (!measurements.is_empty()).then(|| Run { provenance, measurements, ..run.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn each_side_has_what_it_took_and_who_it_was() {
        let run = sample::full_run();
        let sides = SelectedSide::Both.select_runs(run.clone());
        let [(Some(own_name), own), (Some(other_name), other)] = &sides[..] else { panic!("{sides:#?}") };
        assert_eq!((own_name.as_str(), other_name.as_str()), ("nccl", "mpi"));
        assert_eq!(other.provenance.library_version, "Open MPI 4.1.4");
        assert_eq!(own.provenance.library_version, run.provenance.library_version);
        assert!([own, other].iter().all(|side| side.provenance.versus.is_none()));
        // The last measurement has no baseline.
        assert_eq!((own.measurements.len(), other.measurements.len()), (4, 3));
        for (index, (own, other)) in own.measurements.iter().zip(&other.measurements).enumerate() {
            let versus = run.measurements[index].versus.as_ref().unwrap();
            assert_eq!((other.time_us, other.busbw_gbps), (versus.time_us, versus.busbw_gbps));
            assert_eq!((other.wrong, &other.rounds_us), (versus.wrong, &versus.rounds_us));
            assert_eq!(
                (own.time_us, own.wrong),
                (run.measurements[index].time_us, run.measurements[index].wrong)
            );
            assert_eq!((own.bytes, own.placement), (other.bytes, other.placement));
            assert!(own.versus.is_none() && other.versus.is_none() && other.statistics.is_none());
        }
        assert_eq!(other.measurements[1].mismatches[0].rank, 0);
        assert_eq!(SelectedSide::Own.select_runs(run.clone()), [(None, run.clone())]);
        assert_eq!(SelectedSide::Other.select_runs(run), [(Some("mpi".to_owned()), other.clone())]);
    }

    #[test]
    fn a_run_of_one_side_has_no_other() {
        let (mut unknown, mut nothing) = (sample::full_run(), sample::full_run());
        unknown.provenance.versus = None;
        nothing.measurements.drain(..3);
        for run in [unknown, nothing] {
            assert_eq!(SelectedSide::Both.select_runs(run.clone()), [(None, run.clone())]);
            assert_eq!(SelectedSide::Other.select_runs(run), []);
        }
    }
}
