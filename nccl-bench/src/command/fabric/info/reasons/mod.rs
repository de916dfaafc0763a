//! Reasons why no interface of libfabric matches: the excluding hint for each provider, and the cause of a
//! missing provider.

mod devices;

use std::fs;
use std::path::Path;

use collectives::fabric::{self, Hints, Info, Registered, Version};
use diagnosis::host::rdma::Host;
use diagnosis::words::join_list;
use serde::Serialize;

pub(super) use devices::describe_devices;

/// Maximum edit distance between a misspelt name and a known one.
const SLIPS: usize = 1;

/// A reason with its remedy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Reason {
    /// The reason, as a sentence.
    pub text: String,
    /// The remedy, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
    /// The provider concerned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// Hints to drop: after removal of any one of them, this provider matches.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub without: Vec<String>,
}

impl Reason {
    fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }

    fn with_advice(self, advice: impl Into<String>) -> Self {
        Self { advice: Some(advice.into()), ..self }
    }

    fn for_provider(self, provider: &str) -> Self {
        Self { provider: Some(provider.to_owned()), ..self }
    }
}

/// One hint of a request other than the provider.
struct Hint {
    /// `domain`.
    kind: &'static str,
    value: String,
    /// The other hints.
    without: Hints,
    /// This hint alone, for the same provider.
    alone: Hints,
}

impl Hint {
    fn all(hints: &Hints) -> Vec<Self> {
        type Field = fn(&mut Hints) -> &mut Option<String>;
        let none = Hints { provider: hints.provider.clone(), ..Hints::default() };
        let mut all = Vec::new();
        if let Some(endpoint) = hints.endpoint {
            let without = Hints { endpoint: None, ..hints.clone() };
            let alone = Hints { endpoint: Some(endpoint), ..none.clone() };
            all.push(Self { kind: "endpoint type", value: endpoint.to_string(), without, alone });
        }
        for &capability in &hints.capabilities {
            let mut without = hints.clone();
            without.capabilities.retain(|other| *other != capability);
            let alone = Hints { capabilities: vec![capability], ..none.clone() };
            all.push(Self { kind: "capability", value: capability.to_string(), without, alone });
        }
        let names: [(_, Field); 4] = [
            ("domain", |hints| &mut hints.domain),
            ("fabric", |hints| &mut hints.fabric),
            ("node", |hints| &mut hints.node),
            ("service", |hints| &mut hints.service),
        ];
        for (kind, field) in names {
            let (mut without, mut alone) = (hints.clone(), none.clone());
            if let Some(value) = field(&mut without).take() {
                *field(&mut alone) = Some(value.clone());
                all.push(Self { kind, value, without, alone });
            }
        }
        all
    }

    fn describe(&self) -> String {
        format!("the {} {}", self.kind, self.value)
    }

    /// Returns possible values of the hint from these entries.
    fn possible_values(&self, entries: &[&Info]) -> Option<String> {
        let name: fn(&Info) -> &str = match self.kind {
            "endpoint type" => |entry| &entry.endpoint,
            "domain" => |entry| &entry.domain,
            "fabric" => |entry| &entry.fabric,
            _ => return None,
        };
        let names = distinct_names(entries.iter().map(|entry| name(entry)));
        Some(format!("{} {}", self.kind, join_list(&names)))
    }

    fn advice(&self) -> Option<&'static str> {
        match self.kind {
            "node" => Some("see whether the name has an address that this host reaches (getent hosts NAME)"),
            "service" => Some("give a port as a number"),
            _ => None,
        }
    }
}

/// Names of the providers, without duplicates.
pub(super) fn provider_names(entries: &[Info]) -> Vec<&str> {
    distinct_names(entries.iter().map(|entry| entry.provider.as_str()))
}

/// Names without duplicates, in the order of the first ones.
fn distinct_names<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut all = Vec::new();
    for name in names {
        if !all.contains(&name) {
            all.push(name);
        }
    }
    all
}

/// Returns the excluding hint for each provider in `of_provider`: the entries of the requested provider
/// without other hints. `ask` queries libfabric.
pub(super) fn explain_excluded_providers(
    hints: &Hints,
    of_provider: &[Info],
    ask: impl Fn(&Hints) -> Result<Vec<Info>, fabric::Error>,
) -> Result<Vec<Reason>, fabric::Error> {
    let provider = hints.provider.as_ref();
    let given = Hint::all(hints);
    let answers = |question: fn(&Hint) -> &Hints| -> Result<Vec<Vec<Info>>, fabric::Error> {
        given.iter().map(|hint| ask(question(hint))).collect()
    };
    let without = answers(|hint| &hint.without)?;
    let alone = answers(|hint| &hint.alone)?;

    let mut reasons: Vec<Reason> = provider_names(of_provider)
        .iter()
        .map(|name| explain_exclusion(name, &given, &without, &alone))
        .collect();
    if let Some(provider) = provider.filter(|_| !given.is_empty()) {
        let others = ask(&Hints { provider: None, ..hints.clone() })?;
        let others = provider_names(&others);
        if !others.is_empty() {
            reasons.push(Reason::new(format!("without -p {provider} these match: {}", others.join(", "))));
        }
    }
    Ok(reasons)
}

/// Returns the reason why this provider does not match. `without` and `alone` are libfabric's answers for
/// each of the hints.
fn explain_exclusion(name: &str, given: &[Hint], without: &[Vec<Info>], alone: &[Vec<Info>]) -> Reason {
    let of = |entries: &[Info]| entries.iter().any(|entry| entry.provider == name);
    let one_too_many: Vec<(&Hint, &Vec<Info>)> =
        given.iter().zip(without).filter(|(_, entries)| of(entries)).collect();
    if !one_too_many.is_empty() {
        let dropped: Vec<String> = one_too_many
            .iter()
            .map(|(hint, entries)| {
                let its: Vec<&Info> = entries.iter().filter(|entry| entry.provider == name).collect();
                let instead =
                    hint.possible_values(&its).map_or_else(String::new, |has| format!(" (it has {has})"));
                format!("without {}{instead}", hint.describe())
            })
            .collect();
        let mut reason =
            Reason::new(format!("provider {name} would match {}", dropped.join(", or "))).for_provider(name);
        reason.advice = one_too_many.iter().find_map(|(hint, _)| hint.advice()).map(str::to_owned);
        reason.without = one_too_many.iter().map(|(hint, _)| hint.value.clone()).collect();
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
        return Reason::new(format!(
            "provider {name} has each of these, but not together: {}",
            all.join(", ")
        ))
        .for_provider(name);
    }
    Reason::new(format!("provider {name} lacks {}", lacks.join(" and "))).for_provider(name)
}

/// Facts about libfabric and the host.
pub(super) struct ProviderFacts<'a> {
    /// The hints of the request.
    pub hints: &'a Hints,
    /// Entries without hints.
    pub all: &'a [Info],
    /// Entries of the requested provider, without other hints.
    pub of_provider: &'a [Info],
    /// Providers compiled into libfabric.
    pub registered: &'a [Registered],
    /// Version of libfabric.
    pub version: Version,
    /// File of the loaded libfabric.
    pub path: &'a Path,
    /// The host.
    pub host: &'a Host,
    /// The value of `FI_PROVIDER`.
    pub variable: Option<&'a str>,
}

/// Returns the reasons why the requested provider is missing, or none if it is present.
pub(super) fn explain_missing_provider(known: &ProviderFacts<'_>) -> Vec<Reason> {
    let wanted = known.hints.provider.as_ref();
    if wanted.is_some() && !known.of_provider.is_empty() {
        return Vec::new();
    }
    if let Some(value) = known.variable.filter(|value| wanted.is_none_or(|name| hides_provider(value, name)))
    {
        // The variable hides other providers from libfabric's answers.
        let reason = Reason::new(format!("FI_PROVIDER={value} keeps libfabric from its other providers"));
        return vec![reason.with_advice("unset FI_PROVIDER")];
    }
    let mut reasons = Vec::new();
    let Some(wanted) = wanted else {
        if known.all.is_empty() {
            reasons.push(
                Reason::new("libfabric offers nothing on this machine, whatever is asked for")
                    .with_advice("FI_LOG_LEVEL=warn makes libfabric report more"),
            );
        }
        return reasons;
    };
    let lower = wanted.to_ascii_lowercase();
    reasons.extend(explain_registration(known, &lower));
    match lower.split(';').next() {
        Some("efa") => reasons.extend(devices::explain_efa(known.host, known.version)),
        Some("verbs") => reasons.extend(devices::explain_verbs(known.host)),
        _ => {}
    }
    if reasons.iter().all(|reason| reason.advice.is_none()) {
        reasons.push(
            Reason::new("no cause is visible from here")
                .with_advice(format!("let libfabric report more: FI_LOG_LEVEL=debug FI_LOG_PROV={lower}")),
        );
    }
    reasons
}

/// Returns true if `FI_PROVIDER` with this value hides the provider. The value lists the providers to use, or
/// after a `^` the providers to exclude.
fn hides_provider(value: &str, provider: &str) -> bool {
    let (list, excludes) = value.strip_prefix('^').map_or((value, false), |list| (list, true));
    let part_of = |name: &str| provider.split(';').any(|part| part.eq_ignore_ascii_case(name));
    let listed =
        list.split(',').map(str::trim).any(|name| part_of(name) || name.eq_ignore_ascii_case(provider));
    listed == excludes
}

/// Returns reasons from the list of providers compiled into libfabric.
fn explain_registration(known: &ProviderFacts<'_>, wanted: &str) -> Vec<Reason> {
    let ProviderFacts { version, path, .. } = known;
    let names: Vec<&str> = known.registered.iter().map(|provider| provider.name.as_str()).collect();
    // Excluded providers need not exist.
    let parts = wanted.split(';').filter(|part| !part.starts_with('^'));
    let lacking: Vec<&str> = parts.filter(|part| !names.contains(part)).collect();
    if lacking.is_empty() {
        let text = format!("libfabric {version} has the provider {wanted}, but it finds nothing here");
        return vec![Reason::new(text).for_provider(wanted)];
    }
    lacking.into_iter().map(|part| lacking_part(part, *version, path, &names).for_provider(part)).collect()
}

fn lacking_part(part: &str, version: Version, path: &Path, names: &[&str]) -> Reason {
    // Libraries needed by these providers: a libfabric linked to them has been built with the provider.
    let needs = match part {
        "efa" => Some("libefa.so"),
        "verbs" => Some("librdmacm.so"),
        _ => None,
    };
    let shown: Vec<&str> = names.iter().copied().filter(|name| !name.starts_with("ofi_hook")).collect();
    if part == "net" && names.contains(&"tcp") {
        return Reason::new(format!("libfabric {version} calls the provider net tcp"))
            .with_advice("ask for it: -p tcp");
    }
    if let Some(needs) = needs.filter(|needs| file_contains(path, needs)) {
        return Reason::new(format!(
            "libfabric {version} was built with the provider {part} (it links {needs}), but skipped it at \
             load time: it found no usable device"
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
            .with_advice(format!("load one that has it: FABRIC_LIBRARY=<path>{place}"));
    }
    let alike = shown.iter().filter(|name| strsim::osa_distance(name, part) <= SLIPS);
    let alike: Vec<String> = alike.map(|name| format!("-p {name}")).collect();
    Reason::new(has).with_advice(match &alike[..] {
        [] => "choose one of them, or load another libfabric: FABRIC_LIBRARY=<path>".to_owned(),
        alike => format!("did you mean {}?", alike.join(" or ")),
    })
}

/// Returns true if the file contains these words.
fn file_contains(path: &Path, words: &str) -> bool {
    let words = words.as_bytes();
    fs::read(path).is_ok_and(|bytes| bytes.windows(words.len()).any(|window| window == words))
}

#[cfg(test)]
mod tests;
