//! Parameters, and their comparison between ranks.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hasher as _};

use super::ReducerOptions;
use crate::job::Group;
use crate::world::MAX_MESSAGE;
use crate::{DataType, Error};

/// A parameter of a model: its name, which errors use, and its shape.
///
/// All ranks pass the same parameters in the same order, which is that of the forward pass: gradients are expected in the
/// reverse order.
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
/// [`Error::Job`] on all ranks if they differ, if two parameters have one name, or if the parameters exceed the address space.
pub(super) fn agree(
    group: &Group,
    parameters: &[Parameter],
    data_type: DataType,
    options: &ReducerOptions,
) -> Result<(), Error> {
    let mine = describe(parameters, data_type, options);
    let mut hasher = DefaultHasher::new();
    hasher.write(mine.as_bytes());
    // The lists are long, and usually equal.
    let digests = group.all_gather_bytes(&hasher.finish().to_le_bytes())?;
    if digests.iter().any(|other| Some(other) != digests.first()) {
        let lists = group.all_gather_bytes(mine.as_bytes().get(..MAX_MESSAGE).unwrap_or(mine.as_bytes()))?;
        let lists: Vec<_> = lists.iter().map(|list| String::from_utf8_lossy(list)).collect();
        let lists: Vec<&str> = lists.iter().map(AsRef::as_ref).collect();
        let unseen = || format!("the parameters differ after the first {MAX_MESSAGE} bytes of their list");
        return Err(Error::Job(first_difference(&lists).unwrap_or_else(unseen)));
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

/// A line for the options, and one for each parameter.
fn describe(parameters: &[Parameter], data_type: DataType, options: &ReducerOptions) -> String {
    let ReducerOptions { bucket_bytes, first_bucket_bytes, wire, op } = options;
    let mut text = format!(
        "{}, bucket_bytes {bucket_bytes}, first_bucket_bytes {first_bucket_bytes}, wire {wire:?}, op {op:?}",
        data_type.rust_name()
    );
    for Parameter { name, shape } in parameters {
        // Writing to a string cannot fail. Escapes keep a name on its line.
        let _ = write!(text, "\n{name:?} {shape:?}");
    }
    text
}

/// Describes the first line in which the lists of all ranks differ.
fn first_difference(lists: &[&str]) -> Option<String> {
    let lines: Vec<Vec<&str>> = lists.iter().map(|list| list.lines().collect()).collect();
    let longest = lines.iter().map(Vec::len).max()?;
    let number = (0..longest).find(|&line| {
        let first = lines.first().and_then(|list| list.get(line));
        lines.iter().any(|list| list.get(line) != first)
    })?;
    let mut variants: Vec<(Option<&str>, Vec<usize>)> = Vec::new();
    for (rank, list) in lines.iter().enumerate() {
        let line = list.get(number).copied();
        match variants.iter_mut().find(|(variant, _)| *variant == line) {
            Some((_, ranks)) => ranks.push(rank),
            None => variants.push((line, vec![rank])),
        }
    }
    let variants: Vec<String> = variants
        .into_iter()
        .map(|(line, ranks)| format!("{} on {}", line.unwrap_or("none"), spans(&ranks)))
        .collect();
    let subject = match number.checked_sub(1) {
        None => "options differ".to_owned(),
        Some(index) => format!("parameters differ, first at index {index}"),
    };
    Some(format!(
        "the {subject}: {}; all ranks must pass the same parameters in the same order, and the same options",
        variants.join(", ")
    ))
}

/// `rank 3`, or `ranks 0-2, 5`.
fn spans(ranks: &[usize]) -> String {
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

    fn list(parameters: &[(&str, &[usize])]) -> String {
        let parameters: Vec<_> =
            parameters.iter().map(|(name, shape)| Parameter::new(*name, *shape)).collect();
        describe(&parameters, DataType::Float32, &ReducerOptions::default())
    }

    #[test]
    fn the_length_is_the_product_of_the_dimensions() {
        assert_eq!(Parameter::new("a", [3, 5]).len(), 15);
        assert_eq!(Parameter::new("scalar", []).len(), 1);
        assert!(Parameter::new("none", [usize::MAX, 4, 0]).is_empty());
        assert_eq!(Parameter::new("huge", [usize::MAX, 2]).len(), usize::MAX);
    }

    #[test]
    fn equal_lists_have_no_difference() {
        let one = list(&[("a", &[2]), ("b\nc", &[3, 4])]);
        assert_eq!(one.lines().count(), 3);
        assert_eq!(first_difference(&[&one, &one, &one]), None);
        assert_eq!(first_difference(&[]), None);
    }

    #[test]
    fn the_first_parameter_that_differs_is_named_with_its_ranks() {
        let right = list(&[("a", &[2]), ("b", &[3, 4]), ("c", &[1])]);
        let wrong = list(&[("a", &[2]), ("b", &[4, 3]), ("d", &[1])]);
        let text = first_difference(&[&right, &right, &wrong, &right]).unwrap();
        assert!(
            text.contains("first at index 1: \"b\" [3, 4] on ranks 0-1, 3, \"b\" [4, 3] on rank 2;"),
            "{text}"
        );
    }

    #[test]
    fn a_rank_with_fewer_parameters_is_named() {
        let (long, short) = (list(&[("a", &[2]), ("b", &[3])]), list(&[("a", &[2])]));
        let text = first_difference(&[&short, &long]).unwrap();
        assert!(text.contains("first at index 1: none on rank 0, \"b\" [3] on rank 1;"), "{text}");
    }

    #[test]
    fn options_are_compared_too() {
        let options = ReducerOptions::default().bucket_bytes(7);
        let other = describe(&[], DataType::Float32, &options);
        let text = first_difference(&[&list(&[]), &other]).unwrap();
        assert!(text.starts_with("the options differ: f32, bucket_bytes 26214400, "), "{text}");
        assert!(
            text.contains("f32, bucket_bytes 7, first_bucket_bytes 1048576, wire Same, op Avg on rank 1;"),
            "{text}"
        );
    }
}
