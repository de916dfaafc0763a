//! Selection of the algorithm of an operation.

use std::fmt;

mod algorithm;
mod collective;
mod medium;
mod rules;
#[cfg(test)]
mod tests;

pub use algorithm::Algorithm;
pub(crate) use algorithm::join_names;
pub use collective::Collective;
pub use medium::Medium;
pub use rules::RULES;

const K: usize = 1 << 10;
const ANY: usize = usize::MAX;

/// Algorithm and segmentation of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// For [`Algorithm::Hierarchical`], the algorithm between hosts.
    pub between: Option<Algorithm>,
    /// Bytes of a segment, for algorithms that cut long messages: of the vector (all_reduce, reduce,
    /// broadcast), or of a rank's block or part (all others).
    pub segment: usize,
    /// Segments in flight at a time.
    pub in_flight: usize,
}

/// Largest number of segments in flight: as many as the tags of their messages distinguish.
pub const MOST_IN_FLIGHT: usize = 1 << 14;

impl Plan {
    /// Overrides the algorithm between hosts and the segmentation, where the plan has any.
    pub(crate) fn with(self, collective: Collective, options: &SelectionOptions) -> Self {
        if !self.algorithm.is_segmented(collective) {
            return Self { segment: ANY, in_flight: 1, ..self };
        }
        let wanted = options.between.filter(|wanted| wanted.serves_between(collective));
        Self {
            algorithm: self.algorithm,
            between: self.between.map(|table| wanted.unwrap_or(table)),
            segment: options.segment.unwrap_or(self.segment),
            in_flight: options.in_flight.unwrap_or(self.in_flight).min(MOST_IN_FLIGHT),
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.algorithm)?;
        if let Some(between) = self.between {
            write!(formatter, ", {between} between hosts")?;
        }
        if self.segment < ANY {
            write!(formatter, ", {} x {} bytes in flight", self.in_flight, self.segment)?;
        }
        Ok(())
    }
}

/// A rule: the plan for operations up to a size, on up to a number of ranks.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// The collective.
    pub collective: Collective,
    /// The medium.
    pub medium: Medium,
    /// Largest number of ranks; for [`Medium::Hosts`], of hosts.
    pub ranks: usize,
    /// Largest number of bytes: of a rank's block (all_gather, gather), or of the vector or of all blocks
    /// together (all others). For all_to_all_v always 0: no rank knows the lengths of the others' parts.
    pub bytes: usize,
    /// The plan.
    pub plan: Plan,
}

/// Segmentation of an algorithm that the options name and no rule has.
const DEFAULT_PLAN: Plan = Plan { algorithm: Algorithm::Ring, between: None, segment: 256 * K, in_flight: 2 };

/// The communicator of a plan: the same on every rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Topology {
    pub(crate) medium: Medium,
    pub(crate) ranks: usize,
    pub(crate) hosts: usize,
    /// True when the ranks have a shared segment.
    pub(crate) shared: bool,
}

impl Topology {
    /// True when the communicator has the resources for an algorithm.
    pub(crate) fn allows(&self, algorithm: Algorithm) -> bool {
        match algorithm {
            Algorithm::Board => self.shared,
            Algorithm::Hierarchical => self.medium == Medium::Hosts,
            _ => true,
        }
    }
}

/// The rules for a communicator, looked up once: a few sizes for each collective.
#[derive(Clone, Debug)]
pub(crate) struct PlanTable {
    /// By collective, pairs of a largest size in bytes and its plan, in ascending order.
    lines: [Vec<(usize, Plan)>; Collective::ALL.len()],
}

impl PlanTable {
    /// `plan` returns the plan for an operation of a size, and changes only after sizes of the rules.
    pub(crate) fn new(plan: impl Fn(Collective, usize) -> Plan) -> Self {
        let lines = Collective::ALL.map(|collective| {
            let of_table = RULES.iter().filter(|rule| rule.collective == collective).map(|rule| rule.bytes);
            let mut sizes: Vec<usize> = of_table.chain([ANY]).collect();
            sizes.sort_unstable();
            let mut lines: Vec<(usize, Plan)> = Vec::new();
            for size in sizes {
                let plan = plan(collective, size);
                match lines.last_mut() {
                    Some((last, same)) if *same == plan => *last = size,
                    _ => lines.push((size, plan)),
                }
            }
            lines
        });
        Self { lines }
    }

    /// The plan for an operation.
    pub(crate) fn of(&self, collective: Collective, bytes: usize) -> Plan {
        let line = self.lines[collective as usize].iter().find(|(most, _)| bytes <= *most);
        line.map_or(DEFAULT_PLAN, |(_, plan)| *plan)
    }
}

/// Returns the plan for an operation; with the algorithm `wanted`, if any. It must serve the collective.
pub(crate) fn plan(
    collective: Collective,
    topology: &Topology,
    bytes: usize,
    wanted: Option<Algorithm>,
) -> Plan {
    let fits = |rule: &Rule, medium: Medium| {
        let count = if medium == Medium::Hosts { topology.hosts } else { topology.ranks };
        rule.collective == collective
            && rule.medium == medium
            && count <= rule.ranks
            && bytes <= rule.bytes
            && rule.plan.algorithm.serves(collective, topology.ranks)
            && topology.allows(rule.plan.algorithm)
    };
    let next = if topology.medium == Medium::Hosts { Medium::Network } else { topology.medium };
    let lines = || {
        let of = |medium| RULES.iter().filter(move |rule| fits(rule, medium)).map(|rule| rule.plan);
        of(topology.medium).chain(of(next))
    };
    match wanted.filter(|&algorithm| topology.allows(algorithm)) {
        Some(algorithm) => {
            let line = lines().find(|plan| plan.algorithm == algorithm);
            line.unwrap_or(Plan { algorithm, ..DEFAULT_PLAN })
        }
        None => lines().next().unwrap_or(DEFAULT_PLAN),
    }
}

/// Options for the selection of algorithms: the same on every rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SelectionOptions {
    pub(crate) medium: Medium,
    /// By collective.
    pub(crate) algorithms: [Option<Algorithm>; Collective::ALL.len()],
    pub(crate) between: Option<Algorithm>,
    pub(crate) segment: Option<usize>,
    pub(crate) in_flight: Option<usize>,
}

impl SelectionOptions {
    /// Leaves everything to the rules.
    pub(crate) const fn new(medium: Medium) -> Self {
        Self {
            medium,
            algorithms: [None; Collective::ALL.len()],
            between: None,
            segment: None,
            in_flight: None,
        }
    }

    /// Lists the options set, by their names in [`Options`](crate::fabric::Options):
    /// `provider = shm, all_reduce = ring`.
    pub(crate) fn describe(&self, provider: Option<&str>) -> String {
        let algorithms = Collective::ALL.map(Collective::name).into_iter().zip(self.algorithms);
        let algorithms = algorithms.chain([("between", self.between)]);
        let algorithms =
            algorithms.map(|(name, algorithm)| (name, algorithm.map(|chosen| chosen.to_string())));
        let sizes = [("segment", self.segment), ("in_flight", self.in_flight)];
        let sizes = sizes.map(|(name, size)| (name, size.map(|size| size.to_string())));
        let given: Vec<String> = [("provider", provider.map(str::to_owned))]
            .into_iter()
            .chain(algorithms)
            .chain(sizes)
            .filter_map(|(name, value)| Some(format!("{name} = {}", value?)))
            .collect();
        if given.is_empty() { "none given".to_owned() } else { given.join(", ") }
    }
}
