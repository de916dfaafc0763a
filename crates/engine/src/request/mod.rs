//! The request: collectives, sizes, repetitions, verification, and the backend.

mod choices;
mod names;
mod size;
mod variables;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use collectives::{DataType, fabric, world};
use record::{Blocking, Settings};
use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::collective::Collective;
use crate::data::Op;

pub use choices::{
    AlgorithmChoice, BackendChoice, Binding, FabricOptions, Fault, Roots, Versus, fabric_collective,
};
pub use names::Names;
pub use size::{Size, SizeStep, Sweep};
pub use variables::{GroupSplit, SYMMETRIC_FENCE, Variables};

/// Lists that were given as `all`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct All {
    /// The collectives.
    pub collectives: bool,
    /// The types.
    pub data_types: bool,
    /// The operators.
    pub ops: bool,
}

/// A measurement to run: collectives, sizes, repetitions, verification, and the backend.
///
/// All processes of a job run equal requests. Serialised are the options and variables that are compared.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Request {
    /// Collectives to measure, in order.
    #[serde(serialize_with = "as_debug")]
    pub collectives: Vec<Collective>,
    /// Name and version of the program, for the record.
    #[serde(skip)]
    pub program: String,
    /// The command line, for the record.
    #[serde(skip)]
    pub command: Vec<String>,
    /// The options that the record has. Its `threads`, `gpus` and `max_bytes` are those of the run, which
    /// follow from the fields below.
    #[serde(flatten)]
    pub settings: Settings,
    /// Groups of ranks of the job that measure at the same time, each in ascending order, and each rank in
    /// one group at most; `None`: all as one group. The other ranks wait. Not together with
    /// [`Variables::split`].
    pub groups: Option<Vec<Vec<usize>>>,
    /// Largest size in bytes, at least the smallest; `None`: the backend's default.
    pub max_bytes: Option<u64>,
    /// Element types to loop over.
    #[serde(serialize_with = "as_debug")]
    pub data_types: Vec<DataType>,
    /// Lists that were given as `all`, of which a backend may lack some.
    #[serde(skip)]
    pub all: All,
    /// Operators to loop over where the collective reduces.
    #[serde(serialize_with = "as_debug")]
    pub ops: Vec<Op>,
    /// Roots to loop over where the collective has one.
    pub roots: Roots,
    /// The baseline, which is measured in turn with the backend.
    pub versus: Option<Versus>,
    /// Measure out of place only.
    pub out_of_place: bool,
    /// Report the memory used.
    pub memory_report: bool,
    /// Measure statistics of single operations, in a second pass unless `per_iteration` times them.
    pub statistics: bool,
    /// Read NCCL's choices from its log as well, at a cost of about a microsecond per operation on rank 0.
    pub log_choices: bool,
    /// GPUs per thread; `None`: all that no other process of the host uses.
    pub gpus: Option<usize>,
    /// The option or variable that requires GPUs, so that host memory is refused.
    #[serde(skip)]
    pub asks_for_gpus: Option<String>,
    /// Threads per process; `None`: the backend's default.
    pub threads: Option<usize>,
    /// Processors that ranks are bound to.
    pub binding: Binding,
    /// Time limit of each step.
    #[serde(skip)]
    pub timeout: Option<Duration>,
    /// The backend.
    pub backend: BackendChoice,
    /// libfabric provider.
    pub provider: String,
    /// Algorithms of the fabric backend.
    #[serde(flatten)]
    pub tuning: FabricOptions,
    /// Way in which the processes join their world.
    #[serde(skip)]
    pub world: world::Kind,
    /// An element to corrupt.
    pub fault: Option<Fault>,
    /// Variables of nccl-tests and of this program.
    #[serde(flatten)]
    pub variables: Variables,
    /// Changes that were made to the request, with reasons, for the record.
    #[serde(skip)]
    pub notes: Vec<String>,
    /// Names of fields in messages.
    #[serde(skip)]
    pub names: Names,
    /// Further options that must be equal on all processes, with their values. A caller that has any also
    /// lists those from which `statistics` follows, which is then not compared itself.
    #[serde(flatten)]
    pub also_equal: BTreeMap<&'static str, String>,
}

impl Request {
    /// A request for `collectives` with the defaults of the program: `float`, sum, 8 bytes to the backend's
    /// default maximum, 20 iterations, one verification.
    pub fn new(collectives: Vec<Collective>) -> Self {
        Self {
            collectives,
            program: concat!("nccl-bench-engine ", env!("CARGO_PKG_VERSION")).to_owned(),
            settings: Settings::of_collectives(),
            data_types: vec![DataType::Float32],
            ops: vec![Op::Sum],
            provider: "auto".to_owned(),
            ..Self::default()
        }
    }

    /// Step from one size to the next.
    pub fn size_step(&self) -> SizeStep {
        match (self.settings.step_factor, self.settings.step_bytes) {
            (None, Some(bytes)) => SizeStep::Bytes(bytes),
            (factor, _) => SizeStep::Factor(factor.unwrap_or(2)),
        }
    }

    /// Time limit of one size.
    pub fn time_budget(&self) -> Option<Duration> {
        self.settings.budget_seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
    }

    /// The algorithms of the fabric backend that are asked for, each with its collective.
    ///
    /// # Errors
    /// When a collective lacks the algorithm, has two or is not measured, or none has `between` between
    /// hosts. The error lists the available algorithms.
    pub fn fabric_algorithms(&self) -> Result<Vec<(fabric::Collective, fabric::Algorithm)>, String> {
        self.tuning.algorithm_choices(&self.collectives, self.names)
    }

    /// Checks what no backend could measure.
    ///
    /// # Errors
    /// The reason, as a sentence.
    pub fn check_values(&self) -> Result<(), String> {
        let settings = &self.settings;
        let problem = if self.collectives.is_empty() || self.data_types.is_empty() || self.ops.is_empty() {
            "a list of collectives, types or operators is empty"
        } else if self.groups.as_ref().is_some_and(|groups| !are_disjoint(groups)) {
            "a list of ranks that measure is empty or not in ascending order, or a rank is in two lists"
        } else if self.groups.is_some() && self.variables.split.is_some() {
            "a list of ranks that measure and NCCL_TESTS_SPLIT cannot be combined"
        } else if settings.min_bytes == 0 || self.max_bytes.is_some_and(|max| max < settings.min_bytes) {
            "the smallest size is 0, or above the largest"
        } else if !self.size_step().is_advancing()
            || (settings.step_factor.is_some() && settings.step_bytes.is_some())
        {
            "only one step can be given: a factor of at least 2, or at least 1 byte"
        } else if settings.iterations == 0 || settings.aggregated == 0 || settings.rounds == Some(0) {
            "iterations, operations per iteration and rounds are at least 1"
        } else if settings.budget_seconds.is_some() && self.time_budget().is_none() {
            "the time limit of one size is not a number of seconds"
        } else if settings.graph_launches > 0
            && (settings.default_stream || settings.per_iteration || settings.blocking != Blocking::No)
        {
            "a CUDA graph cannot be captured on the default stream, with a time for each iteration, or with \
             blocking"
        } else {
            return Ok(());
        };
        Err(problem.to_owned())
    }

    /// The options and variables that must be equal on all processes, by name.
    pub(crate) fn compared_options(&self) -> serde_json::Result<BTreeMap<String, Value>> {
        let mut fields: BTreeMap<String, Value> = serde_json::from_value(serde_json::to_value(self)?)?;
        if !self.also_equal.is_empty() {
            fields.remove("statistics");
        }
        Ok(fields)
    }
}

/// Returns true for at least one group, all with ranks in ascending order, and no rank in two of them.
fn are_disjoint(groups: &[Vec<usize>]) -> bool {
    let mut all: Vec<usize> = groups.iter().flatten().copied().collect();
    all.sort_unstable();
    !groups.is_empty()
        && groups.iter().all(|group| !group.is_empty() && group.is_sorted_by(|a, b| a < b))
        && all.is_sorted_by(|a, b| a < b)
}

/// Serialises a value as its debug output.
fn as_debug<S: Serializer>(value: &impl Debug, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{value:?}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::collections::BTreeSet;

    use super::*;
    use crate::data::traffic::Pattern;

    /// The names of the fields in which two requests differ.
    fn differing(change: impl FnOnce(&mut Request)) -> Vec<String> {
        let before = Request::new(vec![Collective::AllReduce]);
        let mut after = before.clone();
        change(&mut after);
        let (before, after) = (before.compared_options().unwrap(), after.compared_options().unwrap());
        let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
        names.into_iter().filter(|&name| before.get(name) != after.get(name)).cloned().collect()
    }

    #[test]
    fn what_all_processes_must_share_is_compared_by_field_and_variable() {
        assert_eq!(differing(|request| request.settings.iterations = 21), ["iterations"]);
        // The settings have fields of the same names, which a request does not use.
        assert_eq!(differing(|request| request.max_bytes = Some(64)), ["max_bytes"]);
        assert_eq!(differing(|request| request.threads = Some(2)), ["threads"]);
        assert_eq!(differing(|request| request.gpus = Some(2)), ["gpus"]);
        assert_eq!(differing(|request| request.settings.cta_policy = Some(1)), ["cta_policy"]);
        assert_eq!(differing(|request| request.data_types = vec![DataType::Int8]), ["data_types"]);
        assert_eq!(differing(|request| request.roots = Roots::All), ["roots"]);
        assert_eq!(differing(|request| request.tuning.in_flight = Some(3)), ["in_flight"]);
        let spread = Pattern::Spread(0.5);
        assert_eq!(differing(|request| request.variables.pattern = spread), ["NCCL_TESTS_ALLTOALLV_SPREAD"]);
        let split = Some(GroupSplit::Modulo(2));
        assert_eq!(differing(|request| request.variables.split = split), ["NCCL_TESTS_SPLIT"]);
    }

    #[test]
    fn groups_of_ranks_are_disjoint() {
        let check = |groups: &[&[usize]]| {
            let groups = Some(groups.iter().map(|group| group.to_vec()).collect());
            Request { groups, ..Request::new(vec![Collective::AllReduce]) }.check_values().is_ok()
        };
        assert!(check(&[&[0]]) && check(&[&[2, 5], &[0, 3]]));
        assert!(!check(&[]) && !check(&[&[]]) && !check(&[&[0, 1], &[]]));
        assert!(!check(&[&[1, 0]]) && !check(&[&[1, 1]]) && !check(&[&[0, 1], &[1, 2]]));
    }

    #[test]
    fn what_processes_need_not_share_is_not_compared() {
        let unequal = differing(|request| {
            request.command = vec!["nccl-bench".to_owned()];
            request.notes = vec!["a note".to_owned()];
            request.timeout = Some(Duration::from_secs(1));
            request.world = world::Kind::Single;
            request.asks_for_gpus = Some("-g 1".to_owned());
            request.variables.device = Some(1);
        });
        assert_eq!(unequal, [""; 0]);
    }

    #[test]
    fn statistics_are_compared_unless_the_options_are_from_which_they_follow() {
        assert_eq!(differing(|request| request.statistics = true), ["statistics"]);
        let with = |stats: &str| {
            let also_equal = BTreeMap::from([("stats", stats.to_owned())]);
            let request = Request { also_equal, statistics: stats == "true", ..Request::new(Vec::new()) };
            request.compared_options().unwrap()
        };
        let (yes, no) = (with("true"), with("false"));
        assert_eq!((&yes["stats"], yes.len()), (&Value::from("true"), no.len()));
        assert_eq!(yes.iter().filter(|(name, value)| no[*name] != **value).count(), 1);
    }
}
