//! Values of a request: backend, roots, algorithms, faults.

use std::str::FromStr;

use collectives::{UnknownName, fabric};
use serde::Serialize;

use super::Names;
use crate::collective::{Collective, on_fabric};

/// A backend, or the automatic selection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum BackendChoice {
    /// NCCL where a CUDA driver, a GPU and libnccl are found, else libfabric over host memory
    #[default]
    Auto,
    /// NCCL between GPUs
    Nccl,
    /// libfabric between host buffers
    Fabric,
    /// The MPI library whose launcher started the ranks, between host buffers
    Mpi,
}

impl BackendChoice {
    /// Returns true when the data may be on GPUs.
    pub const fn may_use_gpus(self) -> bool {
        matches!(self, Self::Auto | Self::Nccl)
    }
}

/// The baseline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Versus {
    /// The MPI library whose launcher started the ranks, between host buffers
    Mpi,
    /// Libfabric, between host buffers
    Fabric,
}

/// Processors that ranks are bound to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Binding {
    /// One each for ranks in host memory that share a process, where there are enough
    #[default]
    Auto,
    /// One each for all ranks, which must be in host memory
    Core,
    /// None: as the launcher and the system place them
    None,
}

/// An element to corrupt, to test the verification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// The rank whose result is corrupted.
    pub rank: usize,
    /// Index of the element in its receive buffer.
    pub index: usize,
}

/// The roots to loop over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Roots {
    /// This one.
    One(usize),
    /// Each in turn.
    All,
}

impl Default for Roots {
    fn default() -> Self {
        Self::One(0)
    }
}

/// A requested algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlgorithmChoice {
    /// The collective; `None` for all that are measured.
    pub collective: Option<fabric::Collective>,
    /// The algorithm.
    pub algorithm: fabric::Algorithm,
}

impl FromStr for AlgorithmChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (collective, algorithm) = match text.split_once('=') {
            Some((collective, algorithm)) => (Some(fabric_collective(collective)?), algorithm),
            None => (None, text),
        };
        let algorithm = algorithm.parse().map_err(|error: UnknownName| error.to_string())?;
        Ok(Self { collective, algorithm })
    }
}

/// Parses a collective by the name of the fabric backend, `all_reduce`, or of the command, `allreduce`.
pub fn fabric_collective(text: &str) -> Result<fabric::Collective, String> {
    let of_command = text.parse::<Collective>().ok().and_then(on_fabric);
    match of_command {
        Some(collective) => Ok(collective),
        None => text.parse().map_err(|error: UnknownName| error.to_string()),
    }
}

/// Algorithms and their parameters that replace those of the fabric backend's table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FabricOptions {
    /// Algorithms, each for one collective or for all measured ones.
    #[serde(serialize_with = "super::as_debug")]
    pub algorithms: Vec<AlgorithmChoice>,
    /// Algorithm of `hierarchical` between hosts.
    #[serde(serialize_with = "super::as_debug")]
    pub between: Option<fabric::Algorithm>,
    /// Segment size in bytes.
    pub segment: Option<usize>,
    /// Number of segments in flight.
    pub in_flight: Option<usize>,
}

impl FabricOptions {
    /// The first field that was given, if any.
    pub(crate) fn first_given(&self) -> Option<&'static str> {
        let given = [
            ("algorithms", !self.algorithms.is_empty()),
            ("between", self.between.is_some()),
            ("segment", self.segment.is_some()),
            ("in_flight", self.in_flight.is_some()),
        ];
        given.into_iter().find(|(_, given)| *given).map(|(name, _)| name)
    }

    /// See [`Request::fabric_algorithms`](super::Request::fabric_algorithms).
    pub(super) fn algorithm_choices(
        &self,
        collectives: &[Collective],
        names: Names,
    ) -> Result<Vec<(fabric::Collective, fabric::Algorithm)>, String> {
        let measured: Vec<fabric::Collective> = collectives.iter().copied().filter_map(on_fabric).collect();
        if let Some(between) = self.between {
            let (asked, needed) =
                (names.with_value("between", between), names.with_value("algorithms", "hierarchical"));
            if !measured.iter().any(|&collective| between.serves_between(collective)) {
                let known =
                    describe_known(&measured, |algorithm, collective| algorithm.serves_between(collective));
                return Err(format!(
                    "{asked}: no measured collective has this algorithm between hosts{known}"
                ));
            }
            if !self.algorithms.iter().any(|wish| wish.algorithm == fabric::Algorithm::Hierarchical) {
                return Err(format!("{asked} is the part of {needed} between hosts: add {needed}"));
            }
        }
        let mut choices: Vec<(fabric::Collective, fabric::Algorithm)> = Vec::new();
        for &AlgorithmChoice { collective, algorithm } in &self.algorithms {
            let all = collective.map_or_else(|| measured.clone(), |collective| vec![collective]);
            let serving: Vec<_> =
                all.iter().filter(|&&collective| serves_any(algorithm, collective)).collect();
            match (collective, serving.is_empty()) {
                (Some(collective), _) if !measured.contains(&collective) => {
                    let asked = names.with_value("algorithms", format_args!("{collective}={algorithm}"));
                    return Err(format!("{asked}: {collective} is not measured"));
                }
                (_, true) => {
                    let known = describe_known(&all, serves_any);
                    let asked = names.with_value("algorithms", algorithm);
                    return Err(format!("{asked}: not an algorithm of the measured collectives{known}"));
                }
                _ => {}
            }
            for &collective in serving {
                if let Some((_, first)) = choices.iter().find(|(other, _)| *other == collective) {
                    let [first, other] = [*first, algorithm].map(|each| names.with_value("algorithms", each));
                    return Err(format!(
                        "{first} and {other}: {collective} has both; give each collective one"
                    ));
                }
                choices.push((collective, algorithm));
            }
        }
        Ok(choices)
    }
}

fn describe_known(
    collectives: &[fabric::Collective],
    serves: impl Fn(fabric::Algorithm, fabric::Collective) -> bool,
) -> String {
    if collectives.is_empty() {
        return "; the measured collectives have no choice of algorithms".to_owned();
    }
    let each = |&collective: &fabric::Collective| {
        let has = fabric::Algorithm::ALL.into_iter().filter(|&own| serves(own, collective));
        let names: Vec<_> = has.map(fabric::Algorithm::name).collect();
        let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        format!("; {collective} has {names}")
    };
    collectives.iter().map(each).collect()
}

/// Returns true when the algorithm serves the collective for some number of ranks, such as a power of two.
fn serves_any(algorithm: fabric::Algorithm, collective: fabric::Collective) -> bool {
    algorithm.serves(collective, 2)
}
