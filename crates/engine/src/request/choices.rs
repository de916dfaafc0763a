//! Values of a request: backend, roots, algorithms, faults.

use std::str::FromStr;

use collectives::fabric;

use crate::collective::{Collective, Layout as _};

/// What carries the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum BackendChoice {
    /// NCCL where a CUDA driver, a GPU and libnccl are found, else libfabric over host memory
    Auto,
    /// NCCL between GPUs
    Nccl,
    /// libfabric between host buffers
    Fabric,
    /// The MPI library whose launcher started the ranks, between host buffers
    Mpi,
}

impl BackendChoice {
    /// Whether the data may be on GPUs.
    #[must_use]
    pub const fn may_use_gpus(self) -> bool {
        matches!(self, Self::Auto | Self::Nccl)
    }
}

/// What is measured in turn with the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Versus {
    /// The MPI library whose launcher started the ranks, between host buffers
    Mpi,
    /// Libfabric, between host buffers
    Fabric,
}

/// One element to damage, to see that verification finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The rank whose result is damaged.
    pub rank: usize,
    /// The element of its receive buffer.
    pub index: usize,
}

/// Which ranks are the root, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Roots {
    /// This one.
    One(usize),
    /// Each in turn.
    All,
}

/// An algorithm that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AlgorithmChoice {
    /// For this collective; `None`: for all that are measured.
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
        let algorithm = algorithm.parse().map_err(|error: fabric::UnknownAlgorithm| error.to_string())?;
        Ok(Self { collective, algorithm })
    }
}

/// A collective by libfabric's name for it here, `all_reduce`, or by that of the command.
pub fn fabric_collective(text: &str) -> Result<fabric::Collective, String> {
    let of_command = text.parse::<Collective>().ok().and_then(Collective::on_fabric);
    match of_command {
        Some(collective) => Ok(collective),
        None => text.parse().map_err(|error: fabric::UnknownCollective| error.to_string()),
    }
}

/// How the fabric backend shall carry out collectives, where not as its table says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FabricOptions {
    /// `--algo`.
    pub algorithms: Vec<AlgorithmChoice>,
    /// `--between`.
    pub between: Option<fabric::Algorithm>,
    /// `--segment`, in bytes.
    pub segment: Option<usize>,
    /// `--in-flight`.
    pub in_flight: Option<usize>,
}

impl FabricOptions {
    /// One of the arguments that ask for something, if any does.
    #[must_use]
    pub fn argument(&self) -> Option<&'static str> {
        let given = [
            ("--algo", !self.algorithms.is_empty()),
            ("--between", self.between.is_some()),
            ("--segment", self.segment.is_some()),
            ("--in-flight", self.in_flight.is_some()),
        ];
        given.into_iter().find(|(_, given)| *given).map(|(name, _)| name)
    }

    /// The algorithms that are asked for, of `collectives`, each with its collective.
    ///
    /// # Errors
    /// Which ones there are, where a collective has no such algorithm, or is not measured, or none has that between hosts.
    pub fn choices(
        &self,
        collectives: &[Collective],
    ) -> Result<Vec<(fabric::Collective, fabric::Algorithm)>, String> {
        let measured: Vec<fabric::Collective> =
            collectives.iter().filter_map(|collective| collective.on_fabric()).collect();
        if let Some(between) = self.between
            && !measured.iter().any(|&collective| between.serves_between(collective))
        {
            let known = known(&measured, |algorithm, collective| algorithm.serves_between(collective));
            return Err(format!(
                "--between {between}: nothing that is measured has this algorithm between hosts{known}"
            ));
        }
        let hierarchical = |wish: &AlgorithmChoice| wish.algorithm == fabric::Algorithm::Hierarchical;
        if let Some(between) = self.between
            && !self.algorithms.iter().any(hierarchical)
        {
            return Err(format!(
                "--between {between} says what --algo hierarchical does between hosts: add --algo hierarchical"
            ));
        }
        let mut choices = Vec::new();
        for &AlgorithmChoice { collective, algorithm } in &self.algorithms {
            let all = collective.map_or_else(|| measured.clone(), |collective| vec![collective]);
            let serving: Vec<_> = all.iter().filter(|&&collective| serves(algorithm, collective)).collect();
            match (collective, serving.is_empty()) {
                (Some(collective), _) if !measured.contains(&collective) => {
                    return Err(format!("--algo {collective}={algorithm}: {collective} is not measured"));
                }
                (_, true) => {
                    let known = known(&all, serves);
                    return Err(format!("--algo {algorithm}: not an algorithm of what is measured{known}"));
                }
                _ => choices.extend(serving.into_iter().map(|&collective| (collective, algorithm))),
            }
        }
        Ok(choices)
    }
}

/// What each collective has instead.
fn known(
    collectives: &[fabric::Collective],
    serves: impl Fn(fabric::Algorithm, fabric::Collective) -> bool,
) -> String {
    if collectives.is_empty() {
        return "; what is measured has no choice of algorithms".to_owned();
    }
    let each = |&collective: &fabric::Collective| {
        let has = fabric::Algorithm::ALL.into_iter().filter(|&own| serves(own, collective));
        let names: Vec<_> = has.map(fabric::Algorithm::name).collect();
        let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        format!("; {collective} has {names}")
    };
    collectives.iter().map(each).collect()
}

/// Whether there is a number of ranks for which an algorithm serves a collective: a power of two, for some.
fn serves(algorithm: fabric::Algorithm, collective: fabric::Collective) -> bool {
    algorithm.serves(collective, 2)
}
