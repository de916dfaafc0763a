//! Parsers of the values of arguments.

use std::fmt::Display;
use std::sync::LazyLock;
use std::time::Duration;

use collectives::DataType;
use collectives::fabric::MOST_IN_FLIGHT;
use collectives::world;
use engine::collective::{Collective, UnknownCollective};
use engine::data::Op;
use engine::request::{Fault, Roots};
use jiff::Timestamp;
use record::files::{Output, UnknownSuffix};
use record::matching::Threshold;
use record::{Average, Blocking, Registration};

/// Maximum of `-t`. Millions of threads would fail only later.
const MAX_THREADS: usize = 4096;

/// Names of types in other programs, in any case. [`DataType`] itself knows those of nccl-tests and of Rust.
const TYPE_ALIASES: [(&str, DataType); 15] = [
    ("f16", DataType::Float16),
    ("fp16", DataType::Float16),
    ("float16", DataType::Float16),
    ("bf16", DataType::Bfloat16),
    ("f32", DataType::Float32),
    ("fp32", DataType::Float32),
    ("float32", DataType::Float32),
    ("f64", DataType::Float64),
    ("fp64", DataType::Float64),
    ("float64", DataType::Float64),
    ("fp8_e4m3", DataType::Float8E4M3),
    ("float8_e4m3", DataType::Float8E4M3),
    ("float8_e4m3fn", DataType::Float8E4M3),
    ("fp8_e5m2", DataType::Float8E5M2),
    ("float8_e5m2", DataType::Float8E5M2),
];

/// The only value of `-D`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NoImplementation;

/// The values of one argument.
#[derive(Clone, Debug)]
pub(crate) struct List<T>(pub(crate) Vec<T>);

/// Time in the names of the files of one run.
static NAMED_AT: LazyLock<Timestamp> = LazyLock::new(Timestamp::now);

/// A file of results, of which the name may be a template.
pub(crate) fn output(text: &str) -> Result<Output, String> {
    let path = expand_template(text, || world::host().name, *NAMED_AT)?;
    path.parse().map_err(|error: UnknownSuffix| error.to_string())
}

/// Replaces `%h` by the host, `%t` by the time and `%%` by a percent sign.
fn expand_template(template: &str, host: impl Fn() -> String, time: Timestamp) -> Result<String, String> {
    let mut text = String::new();
    let mut characters = template.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            text.push(character);
            continue;
        }
        match characters.next() {
            Some('h') => text.push_str(&host()),
            Some('t') => text.push_str(&time.strftime("%Y%m%dT%H%M%SZ").to_string()),
            Some('%') => text.push('%'),
            other => {
                let unknown = other.map(String::from).unwrap_or_default();
                return Err(format!(
                    "'%{unknown}' in '{template}' is not known: write %h for the host's name, %t for the \
                     time (UTC), or %% for a percent sign"
                ));
            }
        }
    }
    Ok(text)
}

fn parse_collective(text: &str) -> Result<Collective, String> {
    text.parse().map_err(|error: UnknownCollective| error.to_string())
}

/// A number as C's `strtol` reads it with base 0.
fn parse_whole_number(text: &str) -> Option<u32> {
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
    parse_whole_number(text)
        .map(|value| value as usize)
        .ok_or_else(|| format!("write a whole number from 0 to {}", u32::MAX))
}

pub(super) fn at_least_one(text: &str) -> Result<usize, String> {
    match parse_whole_number(text) {
        Some(value) if value >= 1 => Ok(value as usize),
        _ => Err(format!("write a whole number from 1 to {}", u32::MAX)),
    }
}

pub(super) fn segments_in_flight(text: &str) -> Result<usize, String> {
    at_least_one(text)
        .ok()
        .filter(|&count| count <= MOST_IN_FLIGHT)
        .ok_or_else(|| format!("write a whole number from 1 to {MOST_IN_FLIGHT}"))
}

pub(super) fn thread_count(text: &str) -> Result<usize, String> {
    at_least_one(text)
        .ok()
        .filter(|&count| count <= MAX_THREADS)
        .ok_or_else(|| format!("write a whole number from 1 to {MAX_THREADS}"))
}

pub(super) fn switch(text: &str) -> Result<bool, String> {
    match text {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => Err("write 0 or 1".to_owned()),
    }
}

fn one_of<T: Copy>(text: &str, values: &[T]) -> Result<T, String> {
    let value = parse_whole_number(text).and_then(|index| values.get(index as usize)).copied();
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
    match parse_whole_number(text) {
        Some(0) => Ok(NoImplementation),
        _ => Err("kernels of this program over NCCL's device API are not supported; measure NCCL's kernels \
                  with 0, or use nccl-tests for -D 1 to 4"
            .to_owned()),
    }
}

pub(super) fn roots(text: &str) -> Result<Roots, String> {
    match text {
        "all" | "-1" => Ok(Roots::All),
        _ => count(text).map(Roots::One).map_err(|_| "write a rank (0 or larger), or all".to_owned()),
    }
}

pub(super) fn share(text: &str) -> Result<f64, String> {
    match text.parse::<Threshold>() {
        Ok(Threshold(share)) if share > 0.0 && share < 1.0 => Ok(share),
        Ok(_) => Err("write more than 0% and less than 100%, as in 1%".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

pub(super) fn seconds(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('s').unwrap_or(text).trim().parse::<f64>();
    number
        .ok()
        .filter(|&seconds| seconds > 0.0 && Duration::try_from_secs_f64(seconds).is_ok())
        .ok_or_else(|| "write seconds, as in 2 or 0.5".to_owned())
}

pub(super) fn step_factor(text: &str) -> Result<u64, String> {
    match parse_whole_number(text) {
        Some(factor) if factor >= 2 => Ok(u64::from(factor)),
        Some(_) => {
            Err("a factor below 2 would never reach the largest size; write 2 or more, or use -i".to_owned())
        }
        None => Err("write a whole number from 2 on; for finer steps use -i".to_owned()),
    }
}

fn parse_list_or_all<T: Copy + PartialEq + Display>(
    text: &str,
    all: &[T],
    one: fn(&str) -> Result<T, String>,
) -> Result<List<T>, String> {
    if text == "all" { Ok(List(all.to_vec())) } else { parse_list(text, one).map(List) }
}

/// Parses a list with commas, and refuses an item that is in it already, perhaps by another of its names.
fn parse_list<T: PartialEq + Display>(
    text: &str,
    one: fn(&str) -> Result<T, String>,
) -> Result<Vec<T>, String> {
    let mut items = Vec::new();
    for name in text.split(',') {
        let item = one(name)?;
        if items.contains(&item) {
            return Err(format!("'{name}' names {item} again: list each once"));
        }
        items.push(item);
    }
    Ok(items)
}

/// Parses a list of collectives.
pub(crate) fn collectives(text: &str) -> Result<List<Collective>, String> {
    parse_list(text, parse_collective).map(List)
}

pub(super) fn data_types(text: &str) -> Result<List<DataType>, String> {
    parse_list_or_all(text, &DataType::ALL, data_type)
}

fn data_type(name: &str) -> Result<DataType, String> {
    let names = || DataType::ALL.into_iter().map(DataType::name).collect::<Vec<_>>().join(", ");
    let alias = TYPE_ALIASES.iter().find(|(alias, _)| name.eq_ignore_ascii_case(alias));
    let found = alias.map_or_else(|| name.parse(), |&(_, data_type)| Ok(data_type));
    found.map_err(|_| format!("'{name}' is none of {}, or all", names()))
}

pub(super) fn ops(text: &str) -> Result<List<Op>, String> {
    parse_list_or_all(text, &Op::ALL, |name| name.parse().map_err(|error| format!("{error}, or all")))
}

pub(super) fn fault(text: &str) -> Result<Fault, String> {
    text.split_once(':')
        .and_then(|(rank, index)| Some(Fault { rank: rank.parse().ok()?, index: index.parse().ok()? }))
        .ok_or_else(|| "write RANK:INDEX, as in 1:0".to_owned())
}
