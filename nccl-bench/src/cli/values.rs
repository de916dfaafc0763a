//! The values of arguments: their types, how each is read, and what is said of one that is none.

use std::str::FromStr;
use std::time::Duration;

use clap::ValueEnum;
use collectives::{DataType, fabric};

use crate::collective::Collective;
use crate::data::{self, Op};
use crate::record::{Average, Blocking, Registration};

/// More than any machine has use for; what starts millions of threads only fails later.
const MOST_THREADS: usize = 4096;

/// What carries the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
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
pub struct Wish {
    /// For this collective; `None`: for all that are measured.
    pub collective: Option<fabric::Collective>,
    /// The algorithm.
    pub algorithm: fabric::Algorithm,
}

impl FromStr for Wish {
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
pub(crate) fn fabric_collective(text: &str) -> Result<fabric::Collective, String> {
    let of_command = text.parse::<Collective>().ok().and_then(Collective::on_fabric);
    match of_command {
        Some(collective) => Ok(collective),
        None => text.parse().map_err(|error: fabric::UnknownCollective| error.to_string()),
    }
}

/// How the fabric backend shall carry out collectives, where not as its table says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tuning {
    /// `--algo`.
    pub algorithms: Vec<Wish>,
    /// `--between`.
    pub between: Option<fabric::Algorithm>,
    /// `--segment`, in bytes.
    pub segment: Option<usize>,
    /// `--in-flight`.
    pub in_flight: Option<usize>,
}

impl Tuning {
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
        let hierarchical = |wish: &Wish| wish.algorithm == fabric::Algorithm::Hierarchical;
        if let Some(between) = self.between
            && !self.algorithms.iter().any(hierarchical)
        {
            return Err(format!(
                "--between {between} says what --algo hierarchical does between hosts: add --algo hierarchical"
            ));
        }
        let mut choices = Vec::new();
        for &Wish { collective, algorithm } in &self.algorithms {
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

/// The only value of `-D`.
#[derive(Clone, Copy, Debug)]
pub(super) struct NoImplementation;

/// Several values of one argument.
#[derive(Clone, Debug)]
pub(super) struct List<T>(pub(super) Vec<T>);

pub(super) fn collective(text: &str) -> Result<Collective, String> {
    text.parse().map_err(|error: crate::collective::UnknownCollective| error.to_string())
}

/// A number as C's `strtol` reads it with base 0.
fn whole(text: &str) -> Option<u32> {
    let lower = text.trim().to_ascii_lowercase();
    if let Some(digits) = lower.strip_prefix("0x") {
        return u32::from_str_radix(digits, 16).ok();
    }
    match lower.strip_prefix('0').filter(|digits| !digits.is_empty()) {
        Some(digits) => u32::from_str_radix(digits, 8).ok(),
        None => lower.parse().ok(),
    }
}

pub(super) fn count(text: &str) -> Result<usize, String> {
    whole(text)
        .map(|value| value as usize)
        .ok_or_else(|| format!("write a whole number from 0 to {}", u32::MAX))
}

pub(super) fn at_least_one(text: &str) -> Result<usize, String> {
    match whole(text) {
        Some(value) if value >= 1 => Ok(value as usize),
        _ => Err(format!("write a whole number from 1 to {}", u32::MAX)),
    }
}

pub(super) fn thread_count(text: &str) -> Result<usize, String> {
    at_least_one(text)
        .ok()
        .filter(|&count| count <= MOST_THREADS)
        .ok_or_else(|| format!("write a whole number from 1 to {MOST_THREADS}"))
}

pub(super) fn switch(text: &str) -> Result<bool, String> {
    match text {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => Err("write 0 or 1".to_owned()),
    }
}

fn one_of<T: Copy>(text: &str, values: &[T]) -> Result<T, String> {
    let value = whole(text).and_then(|index| values.get(index as usize)).copied();
    value.ok_or_else(|| format!("write a number from 0 to {}", values.len() - 1))
}

pub(super) fn average(text: &str) -> Result<Average, String> {
    one_of(text, &[Average::Rank0, Average::Mean, Average::Min, Average::Max])
}

pub(super) fn blocking(text: &str) -> Result<Blocking, String> {
    one_of(text, &[Blocking::No, Blocking::WaitAndBarrier, Blocking::Wait, Blocking::Outer])
}

pub(super) fn registration(text: &str) -> Result<Registration, String> {
    one_of(text, &[Registration::None, Registration::Local, Registration::Symmetric])
}

pub(super) fn cta_policy(text: &str) -> Result<u32, String> {
    one_of(text, &[0, 1, 2])
}

pub(super) fn no_device_implementation(text: &str) -> Result<NoImplementation, String> {
    match whole(text) {
        Some(0) => Ok(NoImplementation),
        _ => {
            Err("kernels of our own over NCCL's device API are not supported; measure NCCL's with 0, or use \
                  nccl-tests for -D 1 to 4"
                .to_owned())
        }
    }
}

pub(super) fn roots(text: &str) -> Result<Roots, String> {
    match text {
        "all" | "-1" => Ok(Roots::All),
        _ => count(text).map(Roots::One).map_err(|_| "write a rank from 0 on, or all".to_owned()),
    }
}

pub(super) fn share(text: &str) -> Result<f64, String> {
    let (number, unit) = text.strip_suffix('%').map_or((text, 1.0), |number| (number, 100.0));
    match number.trim().parse::<f64>() {
        Ok(value) if value > 0.0 && value / unit < 1.0 => Ok(value / unit),
        _ => Err("write a share between 0 and 1, or percent, as in 1%".to_owned()),
    }
}

pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.strip_suffix('s').unwrap_or(text).trim().parse::<f64>();
    number
        .ok()
        .filter(|&seconds| seconds > 0.0)
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| "write seconds, as in 2 or 0.5".to_owned())
}

pub(super) fn step_factor(text: &str) -> Result<u64, String> {
    match whole(text) {
        Some(factor) if factor >= 2 => Ok(u64::from(factor)),
        Some(_) => {
            Err("a factor below 2 would never reach the largest size; write 2 or more, or use -i".to_owned())
        }
        None => Err("write a whole number from 2 on; for finer steps use -i".to_owned()),
    }
}

fn list<T: Copy>(text: &str, all: &[T], one: fn(&str) -> Result<T, String>) -> Result<List<T>, String> {
    if text == "all" {
        return Ok(List(all.to_vec()));
    }
    text.split(',').map(one).collect::<Result<_, _>>().map(List)
}

pub(super) fn data_types(text: &str) -> Result<List<DataType>, String> {
    list(text, &data::supported_types(), data_type)
}

fn data_type(name: &str) -> Result<DataType, String> {
    let names = || data::supported_types().into_iter().map(DataType::name).collect::<Vec<_>>().join(", ");
    name.parse().map_err(|_| format!("'{name}' is none of {}, or all", names()))
}

pub(super) fn ops(text: &str) -> Result<List<Op>, String> {
    list(text, &Op::ALL, |name| name.parse().map_err(|error| format!("{error}, or all")))
}

pub(super) fn fault(text: &str) -> Result<Fault, String> {
    text.split_once(':')
        .and_then(|(rank, index)| Some(Fault { rank: rank.parse().ok()?, index: index.parse().ok()? }))
        .ok_or_else(|| "write RANK:INDEX, as in 1:0".to_owned())
}
