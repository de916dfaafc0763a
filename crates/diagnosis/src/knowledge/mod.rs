//! Knowledge about messages, versions and variables, as data: files readable without programming experience.
//!
//! The files are in `crates/diagnosis/knowledge`, and are compiled in. Its `README.md` explains them.

pub mod conflicts;
pub mod faults;
mod file;
pub(crate) mod parts;
pub(crate) mod rule;
pub mod rules;
pub(crate) mod texts;
mod words;

#[cfg(test)]
mod tests;
