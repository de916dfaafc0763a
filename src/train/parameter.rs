//! Parameters, and their comparison between ranks.

use std::collections::HashSet;
use std::iter;

use super::ReducerOptions;
use crate::hash::fnv1a_hash;
use crate::job::Group;
use crate::{DataType, Error};

/// Number of lines whose difference the ranks look for together: a list can be longer than a message.
const BLOCK: usize = 64;
/// Largest number of characters of a line in an error.
const LONGEST: usize = 200;

/// A parameter of a model: its name, which errors use, and its shape.
///
/// All ranks pass the same parameters in the same order, which is that of the forward pass: gradients are
/// expected in the reverse order.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Parameter {
    /// The name: `layers.0.weight`.
    pub name: String,
    /// Its dimensions; empty for a scalar.
    pub shape: Vec<usize>,
}

impl Parameter {
    /// A parameter of this name and shape.
    pub fn new(name: impl Into<String>, shape: impl Into<Vec<usize>>) -> Self {
        Self { name: name.into(), shape: shape.into() }
    }

    /// Number of elements: the product of the dimensions, or `usize::MAX` if that is larger.
    #[must_use]
    pub fn len(&self) -> usize {
        if self.shape.contains(&0) {
            return 0;
        }
        self.shape.iter().fold(1, |len: usize, &dimension| len.saturating_mul(dimension))
    }

    /// True if there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Compares the parameters and options of all ranks. Collective.
///
/// # Errors
/// [`Error::Job`] on all ranks if they differ, if two parameters have one name, or if the parameters exceed
/// the address space.
pub(super) fn agree_on_parameters(
    group: &Group,
    parameters: &[Parameter],
    data_type: DataType,
    options: &ReducerOptions,
) -> Result<(), Error> {
    let mine = describe_parameters(parameters, data_type, options);
    // The lists are long, and usually equal.
    let digests = group.all_gather_bytes(&digest_lines(&mine).to_le_bytes())?;
    if first_different(&digests, digests.first().map_or(0, Vec::len)).is_some() {
        return Err(Error::Job(describe_difference(group, &mine)?));
    }
    let total = parameters.iter().fold(0_usize, |total, parameter| total.saturating_add(parameter.len()));
    // Room for the padding of shards.
    if total.saturating_mul(data_type.size()) > isize::MAX as usize / 2 {
        let longest = parameters.iter().max_by_key(|parameter| parameter.len());
        return Err(Error::Job(format!(
            "the parameters have more elements than fit into memory: see the shape of {:?}",
            longest.map(|parameter| parameter.name.as_str()).unwrap_or_default()
        )));
    }
    let mut names = HashSet::new();
    match parameters.iter().find(|parameter| !names.insert(&parameter.name)) {
        Some(twice) => {
            Err(Error::Job(format!("two parameters have the name {:?}: give each its own", twice.name)))
        }
        None => Ok(()),
    }
}

/// Describes the first difference between lists of all ranks that are not equal. Collective.
fn describe_difference(group: &Group, mine: &[String]) -> Result<String, Error> {
    let digests: Vec<u8> = mine.chunks(BLOCK).flat_map(|block| digest_lines(block).to_le_bytes()).collect();
    let block = first_different(&group.all_gather_bytes(&digests)?, size_of::<u64>()).unwrap_or(0);
    let own: Vec<String> =
        mine.iter().skip(block * BLOCK).take(BLOCK).map(|line| shorten_line(line)).collect();
    let blocks = group.all_gather_bytes(own.join("\n").as_bytes())?;
    let blocks: Vec<_> = blocks.iter().map(|block| String::from_utf8_lossy(block)).collect();
    let lines: Vec<Vec<&str>> = blocks.iter().map(|block| block.lines().collect()).collect();
    Ok(first_difference(&lines, block * BLOCK).unwrap_or_else(|| {
        let first = (block * BLOCK).saturating_sub(1);
        format!("the parameters differ after index {first}, in long names or shapes")
    }))
}

/// The number of the first part of `len` bytes that is not the same in all messages.
fn first_different(messages: &[Vec<u8>], len: usize) -> Option<usize> {
    let parts: Vec<Vec<&[u8]>> = messages.iter().map(|message| message.chunks(len).collect()).collect();
    first_place(&parts)
}

/// The first place at which not all lists have the same element.
fn first_place<T: PartialEq>(lists: &[Vec<T>]) -> Option<usize> {
    let longest = lists.iter().map(Vec::len).max()?;
    (0..longest).find(|&place| {
        let first = lists.first().and_then(|list| list.get(place));
        lists.iter().any(|list| list.get(place) != first)
    })
}

fn digest_lines(lines: &[String]) -> u64 {
    fnv1a_hash(lines.iter().flat_map(|line| line.bytes().chain([b'\n'])))
}

/// A line of at most [`LONGEST`] characters.
fn shorten_line(line: &str) -> String {
    match line.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}...", line.get(..end).unwrap_or_default()),
        None => line.to_owned(),
    }
}

/// A line for the options, and one for each parameter.
fn describe_parameters(
    parameters: &[Parameter],
    data_type: DataType,
    options: &ReducerOptions,
) -> Vec<String> {
    let ReducerOptions { bucket_bytes, first_bucket_bytes, wire, op } = options;
    let options = format!(
        "{}, bucket_bytes {bucket_bytes}, first_bucket_bytes {first_bucket_bytes}, wire {wire:?}, op {op:?}",
        data_type.rust_name()
    );
    // Escapes keep a name on its line.
    let parameters = parameters.iter().map(|Parameter { name, shape }| format!("{name:?} {shape:?}"));
    iter::once(options).chain(parameters).collect()
}

/// Describes the first line in which parts of the lists of all ranks differ. The parts begin with line
/// `start`.
fn first_difference(lines: &[Vec<&str>], start: usize) -> Option<String> {
    let place = first_place(lines)?;
    let mut variants: Vec<(Option<&str>, Vec<usize>)> = Vec::new();
    for (rank, list) in lines.iter().enumerate() {
        let line = list.get(place).copied();
        match variants.iter_mut().find(|(variant, _)| *variant == line) {
            Some((_, ranks)) => ranks.push(rank),
            None => variants.push((line, vec![rank])),
        }
    }
    let variants: Vec<String> = variants
        .into_iter()
        .map(|(line, ranks)| format!("{} on {}", line.unwrap_or("none"), rank_spans(&ranks)))
        .collect();
    let subject = match (start + place).checked_sub(1) {
        None => "options differ".to_owned(),
        Some(index) => format!("parameters differ, first at index {index}"),
    };
    Some(format!(
        "the {subject}: {}; all ranks must pass the same parameters in the same order, and the same options",
        variants.join(", ")
    ))
}

/// `rank 3`, or `ranks 0-2, 5`.
fn rank_spans(ranks: &[usize]) -> String {
    let mut spans: Vec<(usize, usize)> = Vec::new();
    for &rank in ranks {
        match spans.last_mut() {
            Some((_, last)) if *last + 1 == rank => *last = rank,
            _ => spans.push((rank, rank)),
        }
    }
    let texts: Vec<String> = spans
        .into_iter()
        .map(|(first, last)| if first == last { first.to_string() } else { format!("{first}-{last}") })
        .collect();
    format!("{} {}", if ranks.len() == 1 { "rank" } else { "ranks" }, texts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(parameters: &[(&str, &[usize])]) -> Vec<String> {
        let parameters: Vec<_> =
            parameters.iter().map(|(name, shape)| Parameter::new(*name, *shape)).collect();
        describe_parameters(&parameters, DataType::Float32, &ReducerOptions::default())
    }

    #[test]
    fn the_length_is_the_product_of_the_dimensions() {
        assert_eq!(Parameter::new("a", [3, 5]).len(), 15);
        assert_eq!(Parameter::new("scalar", []).len(), 1);
        assert!(Parameter::new("none", [usize::MAX, 4, 0]).is_empty());
        assert_eq!(Parameter::new("huge", [usize::MAX, 2]).len(), usize::MAX);
    }

    /// The first difference between lists that are parts from line `start` on.
    fn found(lists: &[&Vec<String>], start: usize) -> Option<String> {
        let lines: Vec<Vec<&str>> =
            lists.iter().map(|list| list.iter().map(String::as_str).collect()).collect();
        first_difference(&lines, start)
    }

    #[test]
    fn equal_lists_have_no_difference() {
        let one = list(&[("a", &[2]), ("b\nc", &[3, 4])]);
        assert_eq!((one.len(), one.join("\n").lines().count()), (3, 3));
        assert_eq!(found(&[&one, &one, &one], 0), None);
        assert_eq!(found(&[], 0), None);
    }

    #[test]
    fn lines_are_shortened_at_characters() {
        assert_eq!(shorten_line(&"é".repeat(LONGEST)), "é".repeat(LONGEST));
        assert_eq!(shorten_line(&"é".repeat(LONGEST + 1)), "é".repeat(LONGEST) + "...");
    }

    #[test]
    fn the_first_parameter_that_differs_is_named_with_its_ranks() {
        let right = list(&[("a", &[2]), ("b", &[3, 4]), ("c", &[1])]);
        let wrong = list(&[("a", &[2]), ("b", &[4, 3]), ("d", &[1])]);
        let text = found(&[&right, &right, &wrong, &right], 0).unwrap();
        assert!(
            text.contains("first at index 1: \"b\" [3, 4] on ranks 0-1, 3, \"b\" [4, 3] on rank 2;"),
            "{text}"
        );
        let text = found(&[&right, &wrong], 128).unwrap();
        assert!(text.contains("first at index 129: \"b\" [3, 4] on rank 0, "), "{text}");
    }

    #[test]
    fn a_rank_with_fewer_parameters_is_named() {
        let (long, short) = (list(&[("a", &[2]), ("b", &[3])]), list(&[("a", &[2])]));
        let text = found(&[&short, &long], 0).unwrap();
        assert!(text.contains("first at index 1: none on rank 0, \"b\" [3] on rank 1;"), "{text}");
    }

    #[test]
    fn options_are_compared_too() {
        let options = ReducerOptions::default().bucket_bytes(7);
        let other = describe_parameters(&[], DataType::Float32, &options);
        let text = found(&[&list(&[]), &other], 0).unwrap();
        assert!(text.starts_with("the options differ: f32, bucket_bytes 26214400, "), "{text}");
        assert!(
            text.contains("f32, bucket_bytes 7, first_bucket_bytes 1048576, wire Same, op Avg on rank 1;"),
            "{text}"
        );
    }
}
