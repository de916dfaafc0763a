//! Reasons for which no interface matches: the hint that excludes each provider, and the cause of a missing provider.

mod devices;

use std::fs;
use std::path::Path;

use collectives::fabric::{self, Capability, EndpointType, Hints, Registered, Version};
use serde::Serialize;

use super::entry::Entry;
use crate::host::rdma::Host;
pub use devices::described;

/// Maximum edit distance at which a name is taken for a misspelt one.
const SLIPS: usize = 1;

/// A reason with its remedy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Reason {
    /// The reason, as a sentence.
    pub text: String,
    /// The remedy, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
    /// The provider concerned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// Hints, any one of which could be dropped for this provider to match.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub without: Vec<String>,
}

impl Reason {
    fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }

    fn advice(self, advice: impl Into<String>) -> Self {
        Self { advice: Some(advice.into()), ..self }
    }

    fn of(self, provider: &str) -> Self {
        Self { provider: Some(provider.to_owned()), ..self }
    }
}

/// One hint of a request other than the provider.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Hint {
    Endpoint(EndpointType),
    Capability(Capability),
    Domain(String),
    Fabric(String),
    Node(String),
    Service(String),
}

impl Hint {
    fn all(hints: &Hints) -> Vec<Self> {
        let mut all: Vec<Self> = hints.endpoint.into_iter().map(Self::Endpoint).collect();
        all.extend(hints.capabilities.iter().copied().map(Self::Capability));
        all.extend(hints.domain.iter().cloned().map(Self::Domain));
        all.extend(hints.fabric.iter().cloned().map(Self::Fabric));
        all.extend(hints.node.iter().cloned().map(Self::Node));
        all.extend(hints.service.iter().cloned().map(Self::Service));
        all
    }

    /// The other hints.
    fn without(&self, hints: &Hints) -> Hints {
        let mut rest = hints.clone();
        match self {
            Self::Endpoint(_) => rest.endpoint = None,
            Self::Capability(dropped) => rest.capabilities.retain(|capability| capability != dropped),
            Self::Domain(_) => rest.domain = None,
            Self::Fabric(_) => rest.fabric = None,
            Self::Node(_) => rest.node = None,
            Self::Service(_) => rest.service = None,
        }
        rest
    }

    /// This hint alone, for the same provider.
    fn alone(&self, provider: Option<&String>) -> Hints {
        let mut only = Hints { provider: provider.cloned(), ..Hints::default() };
        match self.clone() {
            Self::Endpoint(kind) => only.endpoint = Some(kind),
            Self::Capability(capability) => only.capabilities = vec![capability],
            Self::Domain(name) => only.domain = Some(name),
            Self::Fabric(name) => only.fabric = Some(name),
            Self::Node(name) => only.node = Some(name),
            Self::Service(name) => only.service = Some(name),
        }
        only
    }

    fn value(&self) -> &str {
        match self {
            Self::Endpoint(kind) => kind.name(),
            Self::Capability(capability) => capability.name(),
            Self::Domain(name) | Self::Fabric(name) | Self::Node(name) | Self::Service(name) => name,
        }
    }

    fn describe(&self) -> String {
        let kind = match self {
            Self::Endpoint(_) => "endpoint type",
            Self::Capability(_) => "capability",
            Self::Domain(_) => "domain",
            Self::Fabric(_) => "fabric",
            Self::Node(_) => "node",
            Self::Service(_) => "service",
        };
        format!("the {kind} {}", self.value())
    }

    /// The values of these entries that the hint could have instead.
    fn instead(&self, entries: &[&Entry]) -> Option<String> {
        let of = |kind: &str, name: fn(&Entry) -> &str| {
            let mut names: Vec<&str> = Vec::new();
            for name in entries.iter().map(|entry| name(entry)) {
                if !names.contains(&name) {
                    names.push(name);
                }
            }
            Some(format!("{kind} {}", some(&names)))
        };
        match self {
            Self::Endpoint(_) => of("endpoint type", |entry| &entry.endpoint),
            Self::Domain(_) => of("domain", |entry| &entry.domain),
            Self::Fabric(_) => of("fabric", |entry| &entry.fabric),
            Self::Capability(_) | Self::Node(_) | Self::Service(_) => None,
        }
    }

    fn advice(&self) -> Option<&'static str> {
        match self {
            Self::Node(_) => {
                Some("see whether the name has an address that this host reaches (getent hosts NAME)")
            }
            Self::Service(_) => Some("give a port as a number"),
            _ => None,
        }
    }
}

/// The first of these names, with the number of the others.
fn some(names: &[&str]) -> String {
    const MOST: usize = 8;
    match names.len().checked_sub(MOST) {
        None | Some(0) => names.join(", "),
        Some(more) => format!("{} and {more} more", names[..MOST].join(", ")),
    }
}

/// Names of the providers, without duplicates.
pub fn providers(entries: &[Entry]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for entry in entries {
        if !names.contains(&entry.provider) {
            names.push(entry.provider.clone());
        }
    }
    names
}

/// Returns, for each provider in `of_provider`, the hint that excludes it. `of_provider` has the entries of the
/// requested provider without other hints; `ask` queries libfabric.
pub fn explain(
    hints: &Hints,
    of_provider: &[Entry],
    ask: impl Fn(&Hints) -> Result<Vec<Entry>, fabric::Error>,
) -> Result<Vec<Reason>, fabric::Error> {
    let provider = hints.provider.as_ref();
    let given = Hint::all(hints);
    let answers = |question: &dyn Fn(&Hint) -> Hints| -> Result<Vec<Vec<Entry>>, fabric::Error> {
        given.iter().map(|hint| ask(&question(hint))).collect()
    };
    let without = answers(&|hint| hint.without(hints))?;
    let alone = answers(&|hint| hint.alone(provider))?;

    let mut reasons: Vec<Reason> =
        providers(of_provider).iter().map(|name| excluded(name, &given, &without, &alone)).collect();
    if let Some(provider) = provider.filter(|_| !given.is_empty()) {
        let others = providers(&ask(&Hints { provider: None, ..hints.clone() })?);
        if !others.is_empty() {
            reasons.push(Reason::new(format!("without -p {provider} these match: {}", others.join(", "))));
        }
    }
    Ok(reasons)
}

/// The reason for which this provider does not match. `without` and `alone` are libfabric's answers for each of the
/// hints.
fn excluded(name: &str, given: &[Hint], without: &[Vec<Entry>], alone: &[Vec<Entry>]) -> Reason {
    let of = |entries: &[Entry]| entries.iter().any(|entry| entry.provider == name);
    let one_too_many: Vec<(&Hint, &Vec<Entry>)> =
        given.iter().zip(without).filter(|(_, entries)| of(entries)).collect();
    if !one_too_many.is_empty() {
        let dropped: Vec<String> = one_too_many
            .iter()
            .map(|(hint, entries)| {
                let its: Vec<&Entry> = entries.iter().filter(|entry| entry.provider == name).collect();
                let instead = hint.instead(&its).map_or_else(String::new, |has| format!(" (it has {has})"));
                format!("without {}{instead}", hint.describe())
            })
            .collect();
        let mut reason =
            Reason::new(format!("provider {name} would match {}", dropped.join(", or "))).of(name);
        reason.advice = one_too_many.iter().find_map(|(hint, _)| hint.advice()).map(str::to_owned);
        reason.without = one_too_many.iter().map(|(hint, _)| hint.value().to_owned()).collect();
        return reason;
    }
    let lacks: Vec<String> = given
        .iter()
        .zip(alone)
        .filter(|(_, entries)| !of(entries))
        .map(|(hint, _)| hint.describe())
        .collect();
    if lacks.is_empty() {
        let all: Vec<String> = given.iter().map(Hint::describe).collect();
        return Reason::new(format!("provider {name} has each, but not together: {}", all.join(", ")))
            .of(name);
    }
    Reason::new(format!("provider {name} lacks {}", lacks.join(" and "))).of(name)
}

/// Facts about libfabric and the host.
pub struct Facts<'a> {
    /// The hints of the request.
    pub hints: &'a Hints,
    /// Entries without hints.
    pub all: &'a [Entry],
    /// Entries of the requested provider, without other hints.
    pub of_provider: &'a [Entry],
    /// Providers compiled into libfabric.
    pub registered: &'a [Registered],
    /// Version of libfabric.
    pub version: Version,
    /// File that libfabric was loaded from.
    pub path: &'a Path,
    /// The host.
    pub host: &'a Host,
    /// The value of `FI_PROVIDER`.
    pub variable: Option<&'a str>,
}

/// Reasons for which the requested provider is missing; empty when it is there.
pub fn missing(known: &Facts<'_>) -> Vec<Reason> {
    let wanted = known.hints.provider.as_ref();
    if wanted.is_some() && !known.of_provider.is_empty() {
        return Vec::new();
    }
    if let Some(value) = known.variable.filter(|value| wanted.is_none_or(|name| hides(value, name))) {
        // The variable hides other providers from libfabric's answers.
        let reason = Reason::new(format!("FI_PROVIDER={value} keeps libfabric from its other providers"));
        return vec![reason.advice("unset FI_PROVIDER")];
    }
    let mut reasons = Vec::new();
    let Some(wanted) = wanted else {
        if known.all.is_empty() {
            reasons.push(
                Reason::new("libfabric offers nothing on this machine, whatever is asked for")
                    .advice("FI_LOG_LEVEL=warn makes libfabric say more"),
            );
        }
        return reasons;
    };
    let lower = wanted.to_ascii_lowercase();
    reasons.extend(registration(known, &lower));
    match lower.split(';').next() {
        Some("efa") => reasons.extend(devices::efa(known.host, known.version)),
        Some("verbs") => reasons.extend(devices::verbs(known.host)),
        _ => {}
    }
    if reasons.iter().all(|reason| reason.advice.is_none()) {
        reasons.push(
            Reason::new("no cause is to be seen from here")
                .advice(format!("let libfabric say more: FI_LOG_LEVEL=debug FI_LOG_PROV={lower}")),
        );
    }
    reasons
}

/// Returns true when `FI_PROVIDER` with this value hides the provider: it lists the providers to use, or after a `^`
/// those not to use.
fn hides(value: &str, provider: &str) -> bool {
    let (list, excludes) = value.strip_prefix('^').map_or((value, false), |list| (list, true));
    let part_of = |name: &str| provider.split(';').any(|part| part.eq_ignore_ascii_case(name));
    let listed =
        list.split(',').map(str::trim).any(|name| part_of(name) || name.eq_ignore_ascii_case(provider));
    listed == excludes
}

/// Reasons that follow from the providers compiled into libfabric.
fn registration(known: &Facts<'_>, wanted: &str) -> Vec<Reason> {
    let Facts { version, path, .. } = known;
    let names: Vec<&str> = known.registered.iter().map(|provider| provider.name.as_str()).collect();
    // Excluded providers need not exist.
    let parts = wanted.split(';').filter(|part| !part.starts_with('^'));
    let lacking: Vec<&str> = parts.filter(|part| !names.contains(part)).collect();
    if lacking.is_empty() {
        let text = format!("libfabric {version} has the provider {wanted}, which finds nothing here");
        return vec![Reason::new(text).of(wanted)];
    }
    lacking.into_iter().map(|part| lacking_part(part, *version, path, &names).of(part)).collect()
}

fn lacking_part(part: &str, version: Version, path: &Path, names: &[&str]) -> Reason {
    // The libraries that these providers need: a libfabric that links them has been built with the provider.
    let needs = match part {
        "efa" => Some("libefa.so"),
        "verbs" => Some("librdmacm.so"),
        _ => None,
    };
    let shown: Vec<&str> = names.iter().copied().filter(|name| !name.starts_with("ofi_hook")).collect();
    if part == "net" && names.contains(&"tcp") {
        return Reason::new(format!("libfabric {version} calls the provider net tcp"))
            .advice("ask for it: -p tcp");
    }
    if let Some(needs) = needs.filter(|needs| contains(path, needs)) {
        return Reason::new(format!(
            "libfabric {version} was built with the provider {part} (it links {needs}), but left it out when it was \
             loaded: it found no device that it can use"
        ));
    }
    let has = format!(
        "libfabric {version} ({}) has no provider {part}; it has {}",
        path.display(),
        shown.join(", ")
    );
    if let Some(needs) = needs {
        let place =
            if part == "efa" { "; the EFA installer's is /opt/amazon/efa/lib/libfabric.so.1" } else { "" };
        return Reason::new(format!("{has}. It was built without (it does not link {needs})"))
            .advice(format!("load one that has it: FABRIC_LIBRARY=<path>{place}"));
    }
    let alike = shown.iter().filter(|name| strsim::osa_distance(name, part) <= SLIPS);
    let alike: Vec<String> = alike.map(|name| format!("-p {name}")).collect();
    Reason::new(has).advice(match &alike[..] {
        [] => "choose one of them, or load another libfabric: FABRIC_LIBRARY=<path>".to_owned(),
        alike => format!("did you mean {}?", alike.join(" or ")),
    })
}

/// Returns true when the file contains these words.
fn contains(path: &Path, words: &str) -> bool {
    let words = words.as_bytes();
    fs::read(path).is_ok_and(|bytes| bytes.windows(words.len()).any(|window| window == words))
}

#[cfg(test)]
mod tests;
