//! Checks of values: malformed, misspelt or out of range.

use std::net::IpAddr;

use semver::Version;

use super::bad_value::BadValue;
use super::knowledge::{Form, Variable, VerdictKind};
use super::list::{check_devices, check_list};
use super::names::{Name, ValueForm, VariableReader};
use super::number::{self, Number};
use crate::finding::Severity;

/// Algorithms of NCCL 2.18 and later.
const ALGORITHMS: [&str; 7] = ["Ring", "Tree", "CollnetDirect", "CollnetChain", "NVLS", "NVLSTree", "PAT"];
/// Protocols.
const PROTOCOLS: [&str; 3] = ["LL", "LL128", "Simple"];
/// Collectives before the colon.
const COLLECTIVES: [&str; 5] = ["AllGather", "AllReduce", "Broadcast", "Reduce", "ReduceScatter"];
/// Distances.
const LEVELS: [&str; 10] = ["LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS"];
/// Words for yes.
const YES: [&str; 4] = ["true", "yes", "on", "enable"];

/// Checks the value of a variable.
pub(super) fn check_value(
    name: &Name,
    knowledge: Option<&Variable>,
    value: &str,
    nccl: &Version,
) -> Option<BadValue> {
    let set = |right: &str| Some(format!("set {}={right}", name.name));
    let fault = match knowledge.and_then(|variable| Some((variable, variable.form?))) {
        None => of_content(name, value, &set).or_else(|| check_range(knowledge, value)),
        Some((variable, form)) => of_form(name.component, variable, form, value, nccl, &set),
    }?;
    let remedy = fault.remedy.or_else(|| Some(describe_allowed_values(name.name, knowledge)));
    let fault = BadValue { remedy, ..fault };
    let severity =
        knowledge.and_then(|variable| variable.invalid).filter(|_| fault.kind == VerdictKind::Invalid);
    Some(match severity {
        Some(severity) if fault.severity != Severity::Advice => BadValue { severity, ..fault },
        _ => fault,
    })
}

/// Returns a remedy with the variable's possible values.
fn describe_allowed_values(name: &str, knowledge: Option<&Variable>) -> String {
    let Some(variable) = knowledge.filter(|variable| variable.form == Some(Form::Number)) else {
        return format!("unset {name}");
    };
    let numbers = match (variable.minimum, variable.maximum) {
        _ if !variable.values.is_empty() => format!("one of {}", variable.values.join(", ")),
        (Some(minimum), Some(maximum)) => format!("a number from {minimum} to {maximum}"),
        (Some(minimum), None) => format!("a number from {minimum}"),
        _ => "a number".to_owned(),
    };
    format!("unset {name}, or set it to {numbers}")
}

/// Checks a value by its type in the table of names.
fn of_content(name: &Name, value: &str, set: &dyn Fn(&str) -> Option<String>) -> Option<BadValue> {
    match (name.component, name.content) {
        (VariableReader::Nccl, ValueForm::Number | ValueForm::Flag)
        | (VariableReader::Libfabric, ValueForm::Number) => check_number(name.component, value, set),
        (VariableReader::Libfabric, ValueForm::Flag) => libfabric_flag(value, set),
        // -1 turns it off.
        (VariableReader::Plugin, ValueForm::Number) => {
            plugin_number(value, &[], name.name == "OFI_NCCL_EAGER_MAX_SIZE")
        }
        (VariableReader::Plugin, ValueForm::Flag) => plugin_number(value, &["true", "false"], false),
        _ => None,
    }
}

fn of_form(
    component: VariableReader,
    variable: &Variable,
    form: Form,
    value: &str,
    nccl: &Version,
    set: &dyn Fn(&str) -> Option<String>,
) -> Option<BadValue> {
    let values: Vec<&str> = variable.values.iter().map(String::as_str).collect();
    let otherwise = variable.otherwise.as_deref().unwrap_or("it is ignored");
    match form {
        Form::Number => check_number(component, value, set).or_else(|| check_range(Some(variable), value)),
        Form::Word | Form::ExactWord => {
            let fits = |word: &&str| match form {
                Form::ExactWord => *word == value,
                _ => word.eq_ignore_ascii_case(value),
            };
            if values.iter().any(fits) {
                return None;
            }
            let nearest = find_nearest_word(value, &values);
            let reason = format!("`{value}` is not one of its values ({}): {otherwise}", values.join(", "));
            Some(BadValue::invalid(reason, nearest.and_then(set)))
        }
        Form::Words => check_words(value, &values, otherwise, set),
        Form::Level => check_level(value, otherwise, set),
        Form::Algorithms => check_choices(value, &ALGORITHMS, nccl, set),
        Form::Protocols => check_choices(value, &PROTOCOLS, nccl, set),
        Form::Interfaces => check_list(value, "NCCL's bootstrap fails with `no socket interface found`", set),
        Form::Devices => check_devices(value, set),
        Form::Gpus => check_gpus(value, set),
        Form::Network => check_network(value, &values, set),
        Form::File => check_file(value),
        Form::AddressRange => check_address_range(value),
    }
}

/// Checks a number of a component that reads it with `strtoll` or `strtol`.
fn check_number(
    component: VariableReader,
    value: &str,
    set: &dyn Fn(&str) -> Option<String>,
) -> Option<BadValue> {
    let word = value.trim().to_ascii_lowercase();
    let reader = component.name();
    match number::read_number(value) {
        Number::None if word.is_empty() && component == VariableReader::Nccl => {
            Some(BadValue::advice("it is empty: an empty value counts as not set".to_owned(), None))
        }
        Number::None if word.is_empty() => {
            Some(BadValue::invalid(format!("it is empty: {reader} reads this as 0"), None))
        }
        Number::None if number::is_no(&word) => {
            Some(BadValue::advice(format!("{reader} reads numbers only: `{value}` counts as 0"), set("0")))
        }
        Number::None => {
            let right = if YES.contains(&word.as_str()) { set("1") } else { None };
            let reason =
                format!("{reader} reads numbers only: `{value}` counts as 0, not as the intended value");
            Some(BadValue::invalid(reason, right))
        }
        Number::TooLarge if component == VariableReader::Nccl => {
            Some(BadValue::invalid(format!("{value} is too large: NCCL uses the default"), None))
        }
        Number::TooLarge => Some(BadValue::invalid(format!("{value} is too large"), None)),
        Number::Read { value: read, rest, .. } if !rest.is_empty() => {
            let meant = number::with_unit(read, rest).map(|bytes| bytes.to_string());
            let reason = format!("{reader} stops reading at `{rest}`: `{value}` is {read}");
            Some(BadValue::invalid(reason, meant.as_deref().and_then(set)))
        }
        Number::Read { value: read, is_octal: true, .. } => {
            Some(BadValue::advice(format!("a leading zero makes it octal: `{value}` is {read}"), None))
        }
        Number::Read { .. } => None,
    }
}

/// Checks that a number is within the limits.
fn check_range(variable: Option<&Variable>, value: &str) -> Option<BadValue> {
    let variable = variable?;
    let Number::Read { value, .. } = number::read_number(value) else { return None };
    let otherwise = variable.otherwise.as_deref().unwrap_or("it is out of range");
    let allowed: Vec<i64> = variable.values.iter().filter_map(|text| text.parse().ok()).collect();
    if !allowed.is_empty() && !allowed.contains(&value) {
        let reason =
            format!("{value} is not one of its values ({}): {otherwise}", variable.values.join(", "));
        return Some(BadValue::invalid(reason, None));
    }
    let limit = match (variable.minimum, variable.maximum) {
        (Some(minimum), _) if value < minimum => format!("below {minimum}"),
        (_, Some(maximum)) if value > maximum => format!("above {maximum}"),
        _ => return None,
    };
    Some(BadValue::invalid(format!("{value} is {limit}: {otherwise}"), None))
}

/// Checks a flag of libfabric.
fn libfabric_flag(value: &str, set: &dyn Fn(&str) -> Option<String>) -> Option<BadValue> {
    let lower = value.to_ascii_lowercase();
    if ["0", "1", "true", "false", "yes", "no", "on", "off"].contains(&lower.as_str()) {
        return None;
    }
    let right = if lower.is_empty() { None } else { set("1") };
    let reason =
        format!("libfabric reads 0, false, no, off and 1, true, yes, on only: it does not take `{value}`");
    Some(BadValue::invalid(reason, right))
}

/// Checks a number or a switch of aws-ofi-nccl: nothing may follow the number. `words` are the words of a
/// switch.
fn plugin_number(value: &str, words: &[&str], may_be_negative: bool) -> Option<BadValue> {
    if words.iter().any(|word| word.eq_ignore_ascii_case(value)) {
        return None;
    }
    if let Number::Read { rest: "", value: read, .. } = number::read_number(value) {
        let is_negative = read < 0 && !may_be_negative;
        return is_negative
            .then(|| BadValue::invalid(format!("{read} is below 0: a negative value has no meaning"), None));
    }
    let allowed = if words.is_empty() { "a number" } else { "0, 1, true or false" };
    let reason = format!(
        "`{value}` is not {allowed}: aws-ofi-nccl uses its default, and since 1.14 fails its initialization"
    );
    Some(BadValue::invalid(reason, None))
}

/// Checks a list of words, with an optional `^` at the beginning.
fn check_words(
    value: &str,
    values: &[&str],
    otherwise: &str,
    set: &dyn Fn(&str) -> Option<String>,
) -> Option<BadValue> {
    let wrong = |token: &&str| {
        let token = token.trim_start_matches('^');
        !token.is_empty() && !values.iter().any(|known| known.eq_ignore_ascii_case(token))
    };
    let token = value.split(',').find(wrong)?;
    let right = find_nearest_word(token.trim_start_matches('^'), values);
    let reason = format!("`{token}` is not one of {}: {otherwise}", values.join(", "));
    Some(BadValue::invalid(reason, right.and_then(|right| set(&value.replace(token, right)))))
}

/// Checks a distance.
fn check_level(value: &str, otherwise: &str, set: &dyn Fn(&str) -> Option<String>) -> Option<BadValue> {
    if LEVELS.contains(&value) || value.starts_with(|digit: char| digit.is_ascii_digit()) {
        return None;
    }
    let upper = value.trim().to_ascii_uppercase();
    // NVLINK means NVL. LOC disables direct access, and is never guessed.
    let begins =
        LEVELS.iter().copied().find(|level| upper.starts_with(level) && (*level != "LOC" || upper == "LOC"));
    let nearest = begins.or_else(|| find_nearest_word(value, &LEVELS));
    let reason = format!("`{value}` is not one of LOC, NVL, PIX, PXB, PHB, SYS (in capitals): {otherwise}");
    Some(BadValue::invalid(reason, nearest.and_then(set)))
}

/// Checks the choice of algorithms or protocols.
fn check_choices(
    value: &str,
    known: &[&str],
    nccl: &Version,
    set: &dyn Fn(&str) -> Option<String>,
) -> Option<BadValue> {
    let by_collective = *nccl >= Version::new(2, 24, 0);
    if !by_collective && value.contains([':', ';']) {
        let reason = format!("NCCL {nccl} does not know values by collective (new in 2.24)");
        return Some(BadValue::invalid(reason, None));
    }
    for (index, part) in value.split(';').enumerate() {
        let (collective, list) = match part.split_once(':') {
            Some((collective, list)) => (Some(collective), list),
            None => (None, part),
        };
        if let Some(collective) = collective
            && !COLLECTIVES.iter().any(|known| known.eq_ignore_ascii_case(collective))
        {
            let reason = format!(
                "`{collective}` is not a collective known to NCCL ({}): its initialization fails",
                COLLECTIVES.join(", ")
            );
            let right =
                find_nearest_word(collective, &COLLECTIVES).map(|right| value.replace(collective, right));
            return Some(BadValue::invalid(reason, right.as_deref().and_then(set)).into_broken());
        }
        if collective.is_none() && index > 0 {
            let reason =
                "all parts but the first must name a collective: NCCL's initialization fails".to_owned();
            return Some(BadValue::invalid(reason, None).into_broken());
        }
        let list = list.strip_prefix('^').unwrap_or(list);
        let unknown = |token: &&str| !known.iter().any(|known| known.eq_ignore_ascii_case(token));
        let Some(token) = list.split(',').filter(|token| !token.is_empty()).find(unknown) else { continue };
        let right = find_nearest_word(token, known).map(|right| value.replace(token, right));
        let right = right.as_deref().and_then(set);
        let names = known.join(", ");
        return Some(if by_collective {
            let reason =
                format!("`{token}` is not one of {names}: since 2.24, NCCL's initialization fails on it");
            BadValue::invalid(reason, right).into_broken()
        } else {
            let reason = format!(
                "`{token}` is not one of {names}: NCCL {nccl} skips it silently, and disables all values \
                 that are not listed"
            );
            BadValue::invalid(reason, right)
        });
    }
    None
}

/// Checks that no GPU is listed twice.
fn check_gpus(value: &str, set: &dyn Fn(&str) -> Option<String>) -> Option<BadValue> {
    let mut once: Vec<&str> = Vec::new();
    let mut twice = None;
    // The beginning of an identifier is enough.
    let is_identifier = |text: &str| {
        !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit() || b"-/".contains(&byte))
    };
    let is_gpu = |gpu: &str| match (gpu.strip_prefix("GPU-"), gpu.strip_prefix("MIG-")) {
        (Some(identifier), _) => is_identifier(identifier),
        // Drivers before 470 write MIG-GPU-identifier/instance/instance.
        (_, Some(identifier)) => is_identifier(identifier.trim_start_matches("GPU-")),
        _ => gpu.trim_start_matches(['-', '+']).parse::<u32>().is_ok(),
    };
    let gpus = || value.split(',').map(str::trim).filter(|gpu| !gpu.is_empty());
    if let Some(other) = gpus().find(|gpu| !is_gpu(gpu)) {
        let reason = format!("`{other}` is not a GPU: CUDA shows the process only the GPUs before it");
        return Some(BadValue::invalid(reason, None).into_broken());
    }
    for gpu in gpus() {
        if once.contains(&gpu) {
            twice = Some(gpu);
        } else {
            once.push(gpu);
        }
    }
    let reason = format!("GPU {} is listed twice: CUDA then shows no GPU at all to the process", twice?);
    Some(BadValue::invalid(reason, set(&once.join(","))).into_broken())
}

/// Checks the name of a network. A name near a known one counts as misspelt.
fn check_network(value: &str, known: &[&str], set: &dyn Fn(&str) -> Option<String>) -> Option<BadValue> {
    let lower = value.trim().to_ascii_lowercase();
    let distance = |word: &str| strsim::damerau_levenshtein(&word.to_ascii_lowercase(), &lower);
    if known.iter().any(|word| distance(word) == 0) {
        return None;
    }
    // Short names resemble names of plugins: gIB.
    let long = known.iter().copied().filter(|word| word.len() > 4);
    let right = long.filter(|word| distance(word) <= 2).min_by_key(|word| distance(word))?;
    let reason =
        format!("no network is called `{value}`, and the initialization fails: did you mean {right}?");
    let quoted = if right.contains(' ') { format!("\"{right}\"") } else { right.to_owned() };
    Some(BadValue::invalid(reason, set(&quoted)).into_broken())
}

/// Checks a range of addresses: `10.0.0.0/16`, `fe80::/10`.
fn check_address_range(value: &str) -> Option<BadValue> {
    // NCCL takes an empty value for an unset one.
    if value.is_empty() {
        return None;
    }
    let is_range = value.split_once('/').is_some_and(|(address, length)| {
        let most = match address.parse::<IpAddr>() {
            Ok(IpAddr::V4(_)) => 32,
            Ok(IpAddr::V6(_)) => 128,
            Err(_) => return false,
        };
        length.parse::<u8>().is_ok_and(|length| length <= most)
    });
    let reason = format!("`{value}` is not a range of addresses such as 10.0.0.0/16: it is ignored");
    (!is_range).then(|| BadValue::invalid(reason, None))
}

/// Checks the name of a file.
fn check_file(value: &str) -> Option<BadValue> {
    let reason = "`~` is not expanded: no file of this name is found".to_owned();
    value
        .starts_with('~')
        .then(|| BadValue::invalid(reason, Some("write the absolute path of the file".to_owned())))
}

/// Returns the known word of two or more letters nearest to a wrong one.
fn find_nearest_word<'a>(wrong: &str, known: &[&'a str]) -> Option<&'a str> {
    let lower = wrong.trim().to_ascii_lowercase();
    let distance = |word: &str| strsim::damerau_levenshtein(&word.to_ascii_lowercase(), &lower);
    let nearest = known.iter().copied().min_by_key(|word| distance(word))?;
    (nearest.len() > 1 && distance(nearest) <= nearest.len().div_ceil(3)).then_some(nearest)
}
