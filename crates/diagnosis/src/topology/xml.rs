//! XML of NCCL: bounds against hostile files, and attributes as numbers.

use std::fmt;
use std::str::FromStr;

use roxmltree::{Document, Node, ParsingOptions};

/// Largest file. A dump of 576 GPUs has some 2 MiB.
const MOST_BYTES: usize = 32 << 20;
/// Most elements and texts of a file.
const MOST_NODES: u32 = 1 << 20;
/// Deepest nesting: NCCL's files have some 8 levels.
const DEEPEST: usize = 64;

/// A file other than a topology or graph of NCCL, with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// The file's name.
    pub name: String,
    /// The reason, and the remedy.
    pub problem: String,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.name, self.problem)
    }
}

impl std::error::Error for Unreadable {}

/// Parses a file.
pub(super) fn parse_xml(text: &str) -> Result<Document<'_>, String> {
    if text.len() > MOST_BYTES {
        return Err(format!(
            "the file has {} MiB, but NCCL's files have a few MiB at most",
            text.len() >> 20
        ));
    }
    // The parser and this crate's readers recurse: refuse before.
    if estimate_depth(text) > DEEPEST {
        return Err(format!("elements are nested more than {DEEPEST} deep: NCCL does not write such files"));
    }
    let options = ParsingOptions { nodes_limit: MOST_NODES, ..ParsingOptions::default() };
    Document::parse_with_options(text, options).map_err(|error| match error {
        roxmltree::Error::NoRootNode => {
            "the file is empty; NCCL writes it when a communicator starts".to_owned()
        }
        roxmltree::Error::UnclosedRootNode => "the file is cut: its last element has no end".to_owned(),
        other => format!("no XML: {other}"),
    })
}

/// Refuses other versions of the format. All of NCCL 2.5 to 2.30 write 1.
pub(super) fn check_version(root: Node<'_, '_>) -> Result<(), String> {
    match root.attribute("version") {
        None | Some("1") => Ok(()),
        Some(other) => {
            Err(format!("version \"{other}\" of the format is not known; all NCCL up to 2.30 write 1"))
        }
    }
}

/// Estimates the depth of nesting from above, without parsing.
fn estimate_depth(text: &str) -> usize {
    let bytes = text.as_bytes();
    let (mut depth, mut deepest) = (0_usize, 0);
    for (at, byte) in bytes.iter().enumerate() {
        match (byte, bytes.get(at + 1)) {
            (b'<', Some(b'/')) => depth = depth.saturating_sub(1),
            (b'/', Some(b'>')) => depth = depth.saturating_sub(1),
            (b'<', Some(b'!' | b'?')) => {}
            (b'<', _) => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            _ => {}
        }
    }
    deepest
}

/// Returns the value of an attribute, if it is a number. Blanks around it are harmless.
pub(super) fn number_attribute<T: FromStr>(node: Node<'_, '_>, name: &str) -> Option<T> {
    node.attribute(name)?.trim().parse().ok()
}

/// Returns the value of a hexadecimal attribute, with or without `0x`.
pub(super) fn hexadecimal_attribute(node: Node<'_, '_>, name: &str) -> Option<u64> {
    let text = node.attribute(name)?.trim();
    u64::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok()
}

/// Returns the elements with a name below an element.
pub(super) fn child_elements<'a, 'input: 'a>(
    node: Node<'a, 'input>,
    name: &'static str,
) -> impl Iterator<Item = Node<'a, 'input>> {
    node.children().filter(move |child| child.has_tag_name(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_files_are_refused_with_a_reason() {
        let deep = format!("{}{}", "<pci>".repeat(100_000), "</pci>".repeat(100_000));
        let entities = "<!DOCTYPE a [<!ENTITY b \"&c;&c;\"><!ENTITY c \"x\">]><a>&b;</a>".to_owned();
        let many = format!("<system>{}</system>", "<cpu/>".repeat(1 << 20));
        let large = " ".repeat(MOST_BYTES + 1);
        for (text, part) in [
            (deep, "nested more than 64 deep"),
            (entities, "DTD"),
            (many, "nodes limit"),
            (large, "32 MiB"),
            (String::new(), "empty"),
            ("<system>".to_owned(), "cut"),
            ("NCCL INFO".to_owned(), "no XML"),
            ("<system a=1/>".to_owned(), "no XML"),
        ] {
            let problem = parse_xml(&text).map(|_| ()).unwrap_err();
            assert!(problem.to_lowercase().contains(&part.to_lowercase()), "{problem} / {part}");
        }
    }
}
